"""The QLoRA trainer. Only ``trainer.config``, ``trainer.job`` and ``trainer.data`` readers are free of torch."""
