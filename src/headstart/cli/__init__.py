"""The command line: the only place that prints, reads argv and sets exit codes.

One file a group of verbs. Each imports nothing heavy at its top: torch and the rest come in where a verb runs, so
that `headstart --help` answers at once.
"""

from __future__ import annotations

import os
import sys

import typer

from headstart.cli.bases import bases_command
from headstart.cli.compare import compare_command, report_command
from headstart.cli.demo import demo_command
from headstart.cli.doctor import doctor
from headstart.cli.explain import explain_command
from headstart.cli.models import export_model, import_model, params
from headstart.cli.options import GroupedCommand
from headstart.cli.plan import plan_command
from headstart.cli.serve import serve_command
from headstart.cli.sweep import sweep_command
from headstart.cli.tokens import tokenizer_app, tokens
from headstart.cli.torchrun import program_name
from headstart.cli.train import finetune_command, pretrain_command, verify_command
from headstart.cli.use import evaluate_command, fill_masks, generate_text, predict
from headstart.errors import HeadstartError, is_out_of_memory
from headstart.redaction import redacted
from headstart.signals import end_on_signals, interrupt_on_sigterm
from headstart.version import __version__
from headstart.wording import reason

app = typer.Typer(
    name="headstart",
    help="Pretrain a transformer on your text, swap its head, fine-tune it, and learn what that bought you.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headstart {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


app.command("demo")(demo_command)
app.command("pretrain", cls=GroupedCommand)(pretrain_command)
app.command("finetune", cls=GroupedCommand)(finetune_command)
app.command("compare", cls=GroupedCommand)(compare_command)
app.command("plan")(plan_command)
app.command("sweep", cls=GroupedCommand)(sweep_command)
app.command("report")(report_command)
app.command("evaluate")(evaluate_command)
app.command("predict")(predict)
app.command("explain")(explain_command)
app.command("serve")(serve_command)
app.command("bases")(bases_command)
app.command("verify-resume")(verify_command)
app.command("params")(params)
app.command("import")(import_model)
app.command("export")(export_model)
app.command("doctor")(doctor)
app.add_typer(tokenizer_app, name="tokenizer")
app.command("tokens")(tokens)
app.command("generate")(generate_text)
app.command("fill")(fill_masks)


def main() -> None:
    """Run the command line: 0 done, 2 for what the user can mend, 130 for Ctrl-C or SIGTERM; no traceback for these."""
    # oneDNN keeps a kernel for each of the last 1,024 shapes that it met, up to two megabytes each, and no two batches
    # have quite the same number of tokens. The layers of one batch share theirs; that is worth keeping, no more.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
    # A thread that waits for the others of its process spins, by default for so long that two commands on the same
    # cores keep each other from working: five times slower where twice is fair. It may spin a little, then it sleeps.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    interrupt_on_sigterm()
    try:
        app()
    except HeadstartError as error:
        typer.echo(f"{program_name()}: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("headstart: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:  # `headstart … | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (MemoryError, RuntimeError, ImportError) as error:
        if not is_out_of_memory(error):
            raise
        typer.echo(
            f"{program_name()}: out of memory ({reason(error)}): use smaller sizes, or a larger machine", err=True
        )
        sys.exit(1)
    except OSError as error:  # a name that is too long, a folder that may not be read
        said = redacted(f"{error.filename or 'the system'}: {error.strerror or error}")
        typer.echo(f"{program_name()}: {said}", err=True)
        sys.exit(2)
    finally:
        end_on_signals()
