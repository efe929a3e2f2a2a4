"""Programs that judge beside the job, in a process or a sandbox of their own; each file works without the others."""
