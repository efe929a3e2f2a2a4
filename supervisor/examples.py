"""Examples of the supervisor's own commands, for ``--help``: by the command's words, one example a line."""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, str] = {
    "run": """
mens-sup run configs/quickstart.yaml
mens-sup run my.yaml --run-dir runs/a --set train.max_steps=200
mens-sup run --run-dir runs/a
mens-sup run -- torchrun --nproc-per-node=2 train.py
""",
    "status": """
mens-sup status
mens-sup status runs/a --json
""",
    "checkpoints list": "mens-sup checkpoints list runs/a",
    "checkpoints verify": "mens-sup checkpoints verify runs/a --json",
    "diagnose": """
mens-sup diagnose train.log --exit-code 137 --kernel-log dmesg.txt
python train.py 2>&1 | tee train.log; mens-sup diagnose train.log
""",
    "validate": "mens-sup validate my.yaml --set model.base=./my-model",
    "schema": "mens-sup schema --kind sft",
    "doctor": """
mens-sup doctor
mens-sup doctor --json
""",
    "metrics": """
mens-sup metrics --runs runs
mens-sup metrics --out /var/lib/node_exporter/textfile/mens_sup.prom
""",
    "completion": """
mens-sup completion bash > ~/.local/share/bash-completion/completions/mens-sup
mens-sup completion zsh > ~/.zfunc/_mens-sup
""",
    "queue": """
mens-sup queue
mens-sup queue --all --json
""",
    "cancel": "mens-sup cancel 12",
    "pause": "mens-sup pause 12",
    "resume": "mens-sup resume 12",
    "schedule list": "mens-sup schedule list",
    "schedule remove": "mens-sup schedule remove 3",
    "watch": """
mens-sup watch
mens-sup watch runs/a --no-live
""",
    "logs": """
mens-sup logs runs/a -f
mens-sup logs 12 --attempt 2 -n 50
""",
    "daemon": """
mens-sup daemon
mens-sup daemon --http 8090 --group training
""",
    "plan": """
mens-sup plan my.yaml --gpu-gib 16
mens-sup plan my.yaml --set train.max_length=1024 --json
""",
}
