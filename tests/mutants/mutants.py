"""The defects that the audits behind this project found, each as a small change of our source and a test that sees it.

A mutant is applied to a copy of the packages; ``make mutants`` shows that its test turns red there and nowhere else.
"""

from __future__ import annotations

import corpus_mutants
import learning_mutants
import run_mutants
from mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (*learning_mutants.MUTANTS, *run_mutants.MUTANTS, *corpus_mutants.MUTANTS)
