"""``mens-sup federate``: the command line. Light: what is heavy is imported, or started as a process, when it runs."""

from __future__ import annotations

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from supervisor.problems import InputError
from supervisor.subcommands import Subcommand

INSTALL = "pip install 'mens-supervisor[federate]'"


def _init(options: argparse.Namespace) -> int:
    from trainer.federated.config import node_problem

    _need("cryptography")
    from trainer.federated.identity import COORDINATOR, init

    nodes = [f"node{number}" for number in range(1, options.nodes + 1)]
    if problem := node_problem(options.name):
        raise InputError(f"--name: {problem}.")
    folder = options.out or Path(options.name)
    try:
        file = init(folder, options.name, options.host, options.port, nodes, options.train)
    except FileExistsError:
        raise InputError(
            f"{folder} exists already, and the keys in it are not made anew. Name another by --out, or remove it."
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: the federation's files cannot be made: {error}.") from None
    sys.stdout.write(
        f"{file}: the federation; set train and rounds in it\n"
        f"{folder / COORDINATOR}: keys of the coordinator, which stay on this machine\n"
        + "".join(f"{folder / node}: copy this to that box, and to no other; it holds its keys\n" for node in nodes)
    )
    return 0


def _plan(options: argparse.Namespace) -> int:
    from trainer.federated.blueprint import blueprint
    from trainer.federated.config import load_federation
    from trainer.federated.forecast import forecast, render

    sections = load_federation(options.federation)
    found = forecast(blueprint(Path(sections.train)).layout, sections)
    text = json.dumps(found.as_dict(), indent=2) if options.as_json else render(found, sections)
    sys.stdout.write(text + "\n")
    return 0 if found.in_time else 1


def _serve(options: argparse.Namespace) -> int:
    _need("cryptography")
    from trainer.federated.serve import say, serve

    return serve(options.federation, options.inner_port, say)


def _join(options: argparse.Namespace) -> int:
    _need("cryptography")
    from trainer.federated.join import join
    from trainer.federated.serve import say

    return join(options.folder, say)


def _simulate(options: argparse.Namespace) -> int:
    _need("cryptography")
    from trainer.federated.serve import say
    from trainer.federated.simulate import simulate

    return simulate(options.federation, options.nodes, options.out, say)


def _status(options: argparse.Namespace) -> int:
    import msgspec

    from trainer.federated.config import load_federation
    from trainer.federated.coordinator import waiting_text
    from trainer.federated.serve import read_state

    sections = load_federation(options.federation)
    state = read_state(options.federation.resolve().parent)
    records = state.records if state is not None else ()
    if options.as_json:
        waiting = state.waiting if state is not None else {}
        plain = {"name": sections.name, "rounds": sections.rounds.count, "done": records, "waiting": waiting}
        sys.stdout.write(msgspec.json.encode(plain).decode() + "\n")
        return 0
    done = state.done if state is not None else 0
    sys.stdout.write(f"{sections.name}: {done} of {sections.rounds.count} rounds are done\n")
    for record in records[-10:]:
        moved = "" if record.bytes_moved is None else f"; {record.bytes_moved / 1e6:.2f} MB moved so far"
        sys.stdout.write(
            f"round {record.round}: {record.seconds:.0f} s, {sum(record.counted.values())} label tokens of "
            f"{', '.join(sorted(record.counted)) or 'nobody'}"
            + "".join(f"; {node} refused: {why}" for node, why in record.refused.items())
            + (f"; silent or lost: {', '.join(record.missing)}" if record.missing else "")
            + f"; lost {record.lost_share:.2%}, plain averaging {record.averaging_error:.2%} off{moved}\n"
        )
    if state is not None and state.waited:
        sys.stdout.write(f"{waiting_text(state)}\n")
    return 0


def _need(package: str) -> None:
    if find_spec(package) is None:
        raise InputError(f"mens-sup federate needs the package {package}, which is not installed; {INSTALL}")


def _action(actions: Any, name: str, what: str) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = actions.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}.", allow_abbrev=False
    )
    return added


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Several boxes in one room train one adapter, each on its own data (docs/federated.md)."
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    init = _action(actions, "init", "make keys, certificates and one folder to copy to each node")
    init.add_argument("--name", required=True, help="of the federation")
    init.add_argument("--nodes", type=_count, required=True, metavar="N", help="boxes; they are named node1 to nodeN")
    init.add_argument("--host", required=True, help="name or address under which the nodes reach this machine")
    init.add_argument("--port", type=int, default=9443, help="the one port that the nodes need (9443)")
    init.add_argument("--train", default="train.yaml", metavar="FILE", help="YAML of the training (train.yaml)")
    init.add_argument("--out", type=Path, metavar="DIR", help="folder to make (NAME)")
    init.set_defaults(command=_init)
    plan = _action(actions, "plan", "MB and minutes per round, and the expected speed-up")
    plan.description = f"{plan.description} Exit code 0; 1: no node would be in time; 2: bad input."
    plan.add_argument("federation", metavar="FEDERATION", type=Path, help="YAML file, as federate init makes it")
    plan.add_argument("--json", dest="as_json", action="store_true", help="JSON on standard output")
    plan.set_defaults(command=_plan)
    serve = _action(actions, "serve", "coordinate: SuperLink, TLS front and rounds, until all are done")
    serve.add_argument("federation", metavar="FEDERATION", type=Path, help="YAML file, as federate init makes it")
    serve.add_argument("--inner-port", type=int, default=18443, help="the SuperLink's own port, on loopback (18443)")
    serve.set_defaults(command=_serve)
    join = _action(actions, "join", "take part: SuperNode and this box's supervised trainer")
    join.add_argument("folder", metavar="FOLDER", type=Path, help="the node's folder, with train.yaml in it")
    join.set_defaults(command=_join)
    status = _action(actions, "status", "the rounds so far")
    status.add_argument("federation", metavar="FEDERATION", type=Path, help="YAML file, as federate init makes it")
    status.add_argument("--json", dest="as_json", action="store_true", help="JSON on standard output")
    status.set_defaults(command=_status)
    simulate = _action(actions, "simulate", "a whole federation on this machine, over loopback")
    simulate.add_argument("federation", metavar="FEDERATION", type=Path, help="YAML file")
    simulate.add_argument("--nodes", type=_count, required=True, metavar="N", help="boxes")
    simulate.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to make")
    simulate.set_defaults(command=_simulate)


def _count(text: str) -> int:
    count = int(text) if text.isdecimal() else 0
    if not 1 <= count <= 300:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of boxes, 1 to 300")
    return count


EXAMPLES = {
    "": """
mens-sup federate init --name lan --nodes 3 --host 192.168.1.10
mens-sup federate serve lan/lan.yaml
mens-sup federate join node1
mens-sup federate simulate configs/federated/smollm2.yaml --nodes 2 --out trial
""",
    "init": "mens-sup federate init --name lan --nodes 3 --host 192.168.1.10",
    "plan": """
mens-sup federate plan lan/lan.yaml
mens-sup federate plan lan/lan.yaml --json
""",
    "serve": "mens-sup federate serve lan/lan.yaml",
    "join": "mens-sup federate join node1",
    "status": """
mens-sup federate status lan/lan.yaml
mens-sup federate status lan/lan.yaml --json
""",
    "simulate": "mens-sup federate simulate configs/federated/smollm2.yaml --nodes 2 --out trial",
}
FEDERATE = Subcommand("several boxes, one adapter: keys, plan, coordinator, nodes", _add_arguments, EXAMPLES)
