"""Write docs/explanation/reproducing-the-paper.md from everything under results/.

    python -m reproduction.write_page [--check]

--check writes nothing and fails where the page does not say what the results hold.
"""

import argparse
import sys
import tomllib

from bitta.bench.expand import read_jobs
from reproduction.claims.page import reproduction_page
from reproduction.claims.results import ResultFolders
from reproduction.paths import EXPERIMENTS, EXPLANATION, REASONS, RESULTS, relative

PAGE = EXPLANATION / "reproducing-the-paper.md"
HEADING = """\
# Reproducing the paper

What Lee et al., "Test-Time Adaptation with Binary Feedback" (ICML 2025) claim, ours beside it, and
whether it holds. This page is written by `reproduction/write_page.py` from the files under
`results/`, and a test holds it to them. To fill it in, run what is not run, then the script:

```
bitta sweep reproduction/experiments/components --device cuda --out results/components
python -m reproduction.write_page
```

[The list of experiments](../../reproduction/README.md) says what each folder needs, and where the
paper does not agree with itself; [comparison.md](comparison.md) has the methods side by side.

* **Holds** is decided by means over the seeds that there are, without a test of significance. Where
  the paper gives no measure for "little" or "about as good", ours is in the claim.
* **Partly run**: what is there does not decide it, or says yes but is not all of it.
* **Fair** rows of a method with a star have BiTTA's budget, memories and selection; SimATTA chooses
  and remembers in its own way. Answers weigh as much as the rest of the loss, which lowers some
  rows ([comparison.md](comparison.md)), and SAR goes back to the source model on every batch where
  that model is sure enough, so that it is batch statistics in two thirds of CIFAR-10-C
  ([SAR](../reference/methods/sar.md)).
* Rows **with the handicaps** have what the published code, with which the paper's rows were made,
  gives them: memories of 3 + 3, the last samples of a batch asked about, answered samples
  normalised by those of the same verdict and their probabilities by a second softmax, answers on a
  detached teacher for CoTTA and RoTTA; SGD and other augmentations for CoTTA; weight decay for
  CoTTA, EATA and SoTTA; 1e-6 inside the entropies of TENT, SAR and SoTTA; for SAR a recovery that
  answers prevent, for RoTTA a memory that takes samples in otherwise. SimATTA's row has that code's
  clustering and loss ([SimATTA](../reference/methods/simatta.md)). BiTTA's differs in when a
  batch's statistics are taken in and, on PACS, in having no weight decay. Some rows are higher so:
  see the two averages below.
* † Streams shorter than the paper's: ablations have a quarter of each corruption, time and memory a
  quarter of one. Directions compare, and a number that decides here may decide otherwise on whole
  streams.
* ‡ Collapsed: with some seed, in some domain, less than half of the source model's accuracy; where
  that was not run, less than half of the median row's, or far fewer classes served than there are.
  Its accuracy stays in the mean. Tables say in how many domains.
* Source models are not the paper's (on PACS a ResNet-50, where the paper has a ResNet-18), and the
  corrupted CIFAR images are made by bitta. Both move every row of a table, so that its order says
  more than its differences.
* SimATTA\\* of Table 2 has its default step size, which the paper states for CIFAR. For PACS the
  paper goes by the authors, whose steps are ten times as long: with those it has 54.10 by domains,
  second to BiTTA, and 20.89 mixed (`simatta-authors` in both folders, one seed); with the handicaps
  54.48 and 21.28 (`results/simatta-step-size`). With full labels, Table 13, the longer steps are
  not run.
* Calibration errors are in 15 bins over a whole stream; the paper does not say how its were made.
* Seconds are those of the median batch of each run, which had the device to itself; a report tells
  their mean. Few batches are timed, in which memories still fill and most work is not captured yet.
  After that the order is another one: [comparison.md](comparison.md) has what a batch takes then.
* Why a claim does not hold is kept in `reproduction/reasons.toml`.
"""


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    checking = parser.parse_args().check
    text = page()
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    if not checking:
        PAGE.write_text(text)
    print(f"{'stale' if checking else 'written'}: {relative(PAGE)}")
    return int(checking)


def page() -> str:
    """As it should be."""
    reasons: dict[str, str] = tomllib.loads(REASONS.read_text())
    return reproduction_page(ResultFolders(RESULTS, expected()), reasons, HEADING)


def expected() -> dict[str, list[str]]:
    """The names of the runs of each folder of experiments."""
    folders = sorted(path for path in EXPERIMENTS.iterdir() if path.is_dir())
    return {folder.name: [job.label for job in read_jobs([folder])] for folder in folders}


if __name__ == "__main__":
    sys.exit(main())
