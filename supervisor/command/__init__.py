"""The ``command`` kind of job: any program as a trainer, whether or not it speaks the run directory's contract."""
