"""Pages about runs: one for each run, and an index of many. Self-contained HTML that needs no network."""

from supervisor.report.index import index_page
from supervisor.report.page import run_page
from supervisor.report.summary import RunSummary, Summaries, run_directories
from supervisor.report.write import REPORT_NAME, write_report

__all__ = ["REPORT_NAME", "RunSummary", "Summaries", "index_page", "run_directories", "run_page", "write_report"]
