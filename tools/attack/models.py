"""An attack on model folders: files of small models damaged at random, then opened and used as every verb does.

    python tools/attack/models.py --cases 2000 --seed 1

Each case must end in an answer of finite numbers, or in an error of headstart in a few lines. What must not happen: any
other exception, a hang, a crash, memory without end. The cases run in a process of their own, with limits on time
and memory; where it ends early, another takes the rest.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from safetensors.torch import load_file, save_file

from attack.mutations import Mutation, mutate_bytes, mutate_json, mutate_lines, mutate_safetensors, mutate_torch
from headstart.checkpoints.exchange import open_model, write_transformers
from headstart.checkpoints.folder import Checkpoint, save
from headstart.checkpoints.lab import write_lab
from headstart.config import ClassifierConfig, NextTokenConfig
from headstart.errors import HeadstartError, is_out_of_memory
from headstart.model.model import Model
from headstart.model.presets import preset, usual_head
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.use.classifier import TextClassifier
from headstart.use.explain import explain
from headstart.use.language_model import LanguageModel

SECONDS = 20  # for one case; the slowest takes a fraction of a second
MEMORY = 8 * 2**30  # address space of the process, of which torch takes a good part
SIZES = {"width": 16, "layers": 2, "heads": 2, "feed_forward": 24, "window": 24}
TEXTS = ["A tender, witty book.", "Dull from the first page to the last, and [MASK].", "", "é" * 40]
MUTATIONS: dict[str, tuple[Mutation, ...]] = {
    ".json": (mutate_json, mutate_json, mutate_json, mutate_bytes),
    ".safetensors": (mutate_safetensors,),
    ".pt": (mutate_torch,),
    ".bin": (mutate_torch,),
    ".txt": (mutate_lines,),
}
THEIRS = (
    ("bert-tiny", "classifier"),
    ("roberta-base", "classifier"),
    ("distilbert", "classifier"),
    ("mpnet-base", "masked"),
    ("gpt2", "next-token"),
)


@dataclass(frozen=True)
class Outcome:
    """What a case came to: `answered` and `refused` are good; `traceback`, `memory`, `hang` and `crash` are not."""

    case: str
    kind: str
    detail: str = ""

    @property
    def good(self) -> bool:
        return self.kind in ("answered", "refused")


def run(cases: int, seed: int) -> list[Outcome]:
    """So many cases, each by its number and the seed alone."""
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        make_folders(Path(folder))
        while len(outcomes) < cases:
            command = [sys.executable, __file__, "--worker", folder, "--seed", str(seed), "--cases", str(cases)]
            worker = subprocess.run([*command, "--first", str(len(outcomes))], capture_output=True, text=True)
            outcomes += [Outcome(**json.loads(line)) for line in worker.stdout.splitlines()]
            if len(outcomes) < cases:  # it ended within a case
                kind = "hang" if worker.returncode == -signal.SIGALRM else "crash"
                outcomes.append(Outcome(f"case {len(outcomes)}", kind, worker.stderr[-2000:]))
    return outcomes


def work(folder: Path, seed: int, first: int, cases: int) -> None:
    """The cases from `first` on, one line of JSON each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    for number in range(first, cases):
        signal.alarm(SECONDS)  # ends the process, also from within a library
        print(json.dumps(asdict(attack(folder, number, random.Random(f"{seed}/{number}")))), flush=True)


def attack(folder: Path, number: int, draw: random.Random) -> Outcome:
    """Copy a model, damage one or two of its files, open and use it."""
    source = draw.choice(sorted(path for path in folder.iterdir() if path.is_dir()))
    with tempfile.TemporaryDirectory() as name:
        damaged = Path(name) / "model"
        shutil.copytree(source, damaged)
        files = sorted(path for path in damaged.iterdir() if path.suffix in MUTATIONS)
        changed = []
        for path in draw.sample(files, k=min(len(files), draw.choice((1, 1, 1, 2)))):
            mutation = draw.choice(MUTATIONS[path.suffix])
            path.write_bytes(mutation(draw, path.read_bytes()))
            changed.append(f"{mutation.__name__} of {path.name}")
        case = f"case {number}: {source.name}, {', '.join(changed)}"
        only = next(damaged.glob("*.pt"), damaged)  # the lab's model is a file
        try:
            answer = use(only, Path(name))
        except HeadstartError as error:
            kind = "refused" if _is_printable(str(error)) else "traceback"
            return Outcome(case, kind, ascii(str(error)))
        except BaseException as error:  # a library's panic is no Exception
            kind = "memory" if is_out_of_memory(error) else "traceback"
            return Outcome(case, kind, traceback.format_exc()[-2000:])
        return Outcome(case, "answered", answer)


def use(model: Path, scratch: Path) -> str:
    """Open a model and let it answer, as `predict`, `explain`, `generate`, `fill`, `import` and `export` do."""
    checkpoint = open_model(model)
    save(checkpoint, scratch / "imported")
    head = checkpoint.model.head_config
    if checkpoint.tokenizer is None or head is None:
        return "opened"
    if isinstance(head, ClassifierConfig):
        classifier = TextClassifier(checkpoint, "cpu")
        for prediction in classifier.predict([*TEXTS, (TEXTS[0], TEXTS[1])]):
            assert list(prediction.probabilities) == list(classifier.class_names)
            assert math.isclose(sum(prediction.probabilities.values()), 1.0, abs_tol=1e-6)
            assert prediction.label in classifier.class_names
        explain(classifier, TEXTS[0], orders=1)
    else:
        language_model = LanguageModel(checkpoint)
        if head.kind == "next-token":
            language_model.generate(TEXTS[0], max_tokens=30, temperature=1.0)
        elif head.kind != "next-sentence":
            language_model.fill(TEXTS[1])
    if checkpoint.model.config.family not in ("headstart", "lab"):
        write_transformers(checkpoint, scratch / "exported")
    return "used"


def _is_printable(message: str) -> bool:
    """Whether the command line can print it: half of a surrogate pair from a file cannot be."""
    try:
        message.encode()
    except UnicodeEncodeError:
        return False
    return True


def make_folders(where: Path) -> None:
    """One small model of each kind: ours, and those of other tools."""
    torch.manual_seed(1)
    corpus = [f"a {word} book with a dull page and a witty line {n}" for n in range(40) for word in ("good", "bad")]
    wordpiece = Tokenizer.train(corpus, kind="wordpiece", size=120)
    byte_level = Tokenizer.train(corpus, kind="bpe", size=320)
    unigram = Tokenizer.train(corpus, kind="unigram", size=320)
    own = (("small", "classifier", unigram), ("lab", "next-token", byte_level), ("small", "masked", wordpiece))
    for name, kind, tokenizer in own:
        config = preset(name, vocabulary=tokenizer.size, **SIZES)
        model = Model.build(config, usual_head(config, kind))
        save(Checkpoint(model, ("neg", "pos") if kind == "classifier" else (), tokenizer, 1.5), where / f"ours-{kind}")
    for name, kind in THEIRS:
        config = preset(name, vocabulary=wordpiece.size, **SIZES)
        labels = ("a", "b", "c") if kind == "classifier" else ()
        write_transformers(
            Checkpoint(Model.build(config, usual_head(config, kind, 3)), labels, wordpiece), where / name
        )
    config = preset("gpt2", vocabulary=byte_level.size, **SIZES)
    write_transformers(Checkpoint(Model.build(config, NextTokenConfig()), (), byte_level), where / "gpt2-old")
    _with_merges(where / "gpt2-old")
    _shard(where / "bert-tiny", where / "bert-sharded")
    _old_form(where / "bert-tiny", where / "bert-old")
    (where / "lab-file").mkdir()
    write_lab(Model.build(preset("lab", vocabulary=60, **SIZES), NextTokenConfig()), where / "lab-file" / "lab.pt")


def _shard(source: Path, out: Path) -> None:
    """The same model with its weights in two files behind an index."""
    shutil.copytree(source, out)
    tensors = load_file(out / "model.safetensors")
    (out / "model.safetensors").unlink()
    weight_map = {name: f"part-{k % 2}.safetensors" for k, name in enumerate(sorted(tensors))}
    for file in set(weight_map.values()):
        save_file({name: tensor for name, tensor in tensors.items() if weight_map[name] == file}, out / file)
    (out / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def _old_form(source: Path, out: Path) -> None:
    """The same model as old versions of `transformers` wrote it: a torch file, and the vocabulary as lines."""
    shutil.copytree(source, out)
    torch.save(load_file(out / "model.safetensors"), out / "pytorch_model.bin")
    (out / "model.safetensors").unlink()
    vocabulary = json.loads((out / "tokenizer.json").read_text())["model"]["vocab"]
    (out / "tokenizer.json").unlink()
    renamed = {"<unknown>": "[UNK]", "<start>": "[CLS]", "<separator>": "[SEP]", "<pad>": "[PAD]", "<mask>": "[MASK]"}
    pieces = [renamed.get(piece, piece) for piece in sorted(vocabulary, key=lambda piece: int(vocabulary[piece]))]
    (out / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))


def _with_merges(folder: Path) -> None:
    """The tokenizer of a folder in GPT-2's form: the ids, and the merges as lines."""
    description = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(description["vocab"]))
    (folder / "merges.txt").write_text("".join(f"{' '.join(pair)}\n" for pair in description["merges"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker is not None:
        work(asked.worker, asked.seed, asked.first, asked.cases)
        return
    outcomes = run(asked.cases, asked.seed)
    for outcome in outcomes:
        if not outcome.good:
            print(f"{outcome.kind}: {outcome.case}\n{outcome.detail}\n")
    print(dict(Counter(outcome.kind for outcome in outcomes)))
    sys.exit(any(not outcome.good for outcome in outcomes))


if __name__ == "__main__":
    main()
