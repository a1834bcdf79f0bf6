"""python -m cairn: conversions that need Python's libraries. The `cairn` command does the rest."""

from __future__ import annotations

import argparse
import sys
from typing import List, Optional

from .convert import FORMATS, Converted, convert
from .errors import Error

_EXAMPLES = """\
examples:
  python -m cairn convert model.pt runs/a --step 1000       a torch file becomes a checkpoint
  python -m cairn convert llama/ runs/a                     a Hugging Face folder, by its index
  python -m cairn convert dcp_folder/ runs/a --step 40      a folder of torch.distributed.checkpoint
  python -m cairn convert runs/a model.pt                   the newest checkpoint as a torch file
  python -m cairn convert runs/a w.safetensors --only model a part of it
  python -m cairn convert runs/a out/ --to dcp --step 40    for torch.distributed.checkpoint

Torch files are read with weights_only: nothing in them is executed, and files that hold more than
tensors and plain values are refused. An import never removes a checkpoint that is there.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cairn",
        description="Cairn keeps training alive. `cairn checkpoint --help` shows the commands for "
        "repositories; the ones here need Python.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    one = commands.add_parser(
        "convert",
        help="between torch files, safetensors, torch.distributed.checkpoint and repositories",
        description="Converts SOURCE (a torch file, a safetensors file or folder, a folder of "
        "torch.distributed.checkpoint, a repository or a checkpoint) and writes it to TARGET.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument("source", metavar="SOURCE")
    one.add_argument("target", metavar="TARGET", help="a repository, or a file or folder to make")
    one.add_argument("--step", type=int, help="of the new checkpoint (0); of the one to read")
    one.add_argument("--to", choices=FORMATS, help="the target's format; by its name otherwise")
    one.add_argument("--only", metavar="NAME", help="a part of the state, such as model")
    one.add_argument("--force", action="store_true", help="replace a file that exists")
    return parser


def _report(done: Converted) -> None:
    print(
        f"{done.arrays} arrays, {done.bytes / 1e6:.1f} MB: {done.source} -> {done.target}: "
        f"{done.path}"
    )
    if done.left_out:
        names = ", ".join(done.left_out[:5]) + (", …" if len(done.left_out) > 5 else "")
        print(
            f"left out, because {done.target} has no place for them: {len(done.left_out)} values "
            f"({names})",
            file=sys.stderr,
        )


def main(arguments: Optional[List[str]] = None) -> int:
    """The command; gives the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 0
    try:
        _report(
            convert(
                given.source,
                given.target,
                to=given.to,
                step=given.step,
                only=given.only,
                force=given.force,
            )
        )
    except Error as error:
        print(f"cairn convert: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
