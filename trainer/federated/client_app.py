"""The ClientApp that Flower starts for every message: hands the question to the box's trainer and waits for its answer.

It loads neither torch nor a model. Imports flwr.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from trainer.federated.deltas import Claim, sign
from trainer.federated.identity import NODE_FILE, Node, read_delta_key
from trainer.federated.join import FOLDER_VARIABLE, MAILBOX
from trainer.federated.mailbox import Mailbox, Task
from trainer.federated.messages import adapter, content, head
from trainer.federated.packed import digest

POLL_SECONDS = 0.5

app = ClientApp()


@app.train()  # type: ignore[untyped-decorator]  # flwr is not looked at
def train(message: Message, context: Context) -> Message:
    """A refusal is an answer as well, with its reason: an exception would only say that something failed."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    node = msgspec.json.decode((folder / NODE_FILE).read_bytes(), type=Node)
    asked = head(message.content)
    try:
        task = msgspec.json.decode(asked.get("task", b""), type=Task)
    except msgspec.DecodeError as error:
        return _refusal(message, f"the question is not understood: {error}")
    if (task.federation, asked.get("node")) != (node.federation, node.node):
        return _refusal(message, "the question is for another node")
    mailbox = Mailbox(folder / MAILBOX)
    if task.over:
        mailbox.put_end(task)
        return Message(content({"over": "taken"}, None), reply_to=message)
    broadcast = adapter(message.content)
    if broadcast.shape != (task.broadcast_size,) or digest(broadcast) != task.broadcast:
        return _refusal(message, "the broadcast is not the one that was announced")
    if mailbox.done(task.round, task.broadcast) is None:
        mailbox.put_task(task, broadcast)
    # Flower ends this process with its message; until then the trainer may be started anew and still answer.
    while (found := mailbox.done(task.round, task.broadcast)) is None:
        newest = mailbox.task()
        if newest is not None and newest.round > task.round:
            return _refusal(message, f"a newer question, round {newest.round}, came meanwhile")
        time.sleep(POLL_SECONDS)
    done, flat = found
    claim = Claim(
        node.federation, node.node, task.round, task.broadcast, task.layout.digest, done.digest, done.label_tokens,
        done.tokens, done.steps, done.seconds, done.rows,
    )  # fmt: skip
    signature = sign(claim, read_delta_key(folder))
    return Message(content({"claim": msgspec.json.encode(claim), "signature": signature}, flat), reply_to=message)


def _refusal(message: Message, why: str) -> Message:
    return Message(content({"failed": why}, None), reply_to=message)
