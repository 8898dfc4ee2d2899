"""Read ``#SBATCH`` lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from clusterrun.model.frozen import frozen
from clusterrun.script.sbatch_table import OPTIONS, full_name, option_of_letter

# Options for PBS and LSF, which sbatch reads too, and for Grid Engine.
OF_OTHERS = re.compile(r"(?m)^#(?:PBS|BSUB|\$)(?=\s+-)")
# Words that separate the components of a heterogeneous job.
SEPARATE = ("hetjob", "packjob")
# Added to the code point of an escaped character, which separates no words.
_ESCAPED = 0x80000
NO_OPTION = "sbatch refuses a file with words in its #SBATCH lines that are no option: put # before them"


@frozen
class Directive:
    """One option on an ``#SBATCH`` line."""

    line: int
    # Long name; as typed if sbatch has no such option; '' if ``value`` is no option; ``#PBS`` for one of PBS.
    name: str
    value: str  # '' if there is none

    @property
    def text(self) -> str:
        if self.name.startswith("#"):
            return f"{self.name} {self.value}"
        if not self.name:
            return f"#SBATCH {self.value}"
        return f"#SBATCH --{self.name}={self.value}" if self.value else f"#SBATCH --{self.name}"


def read_directives(text: str) -> tuple[Directive, ...]:
    """Return the directives before the first command of a batch script; sbatch ignores later ones."""
    directives: list[Directive] = []
    for number, line in enumerate(text.replace("\r", "").split("\n"), 1):
        if line.startswith("#SBATCH"):
            directives += in_words(number, line[len("#SBATCH") :])
        elif match := OF_OTHERS.match(line):
            directives.append(Directive(number, match[0], line[match.end() :].strip()))
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return tuple(directives)


def _plain(word: str) -> str:
    return "".join(chr(ord(letter) % _ESCAPED) for letter in word)


def in_words(number: int, text: str) -> Iterator[Directive]:
    """Yield the options in ``text`` as sbatch reads them."""
    try:
        # sbatch ignores a backslash at the end of the line. Another one escapes, also between quotes.
        text = re.sub(r"(?<!\\)\\$", "", text)
        text = re.sub(r"\\(.)", lambda match: chr(_ESCAPED + ord(match[1])), text)
        arguments = [_plain(word) for word in shlex.split(text, comments=True)]
    except ValueError:
        arguments = [_plain(word) for word in text.split()]
    while arguments:
        word = arguments.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            option = OPTIONS.get(full_name(name))
        elif len(word) > 1 and word.startswith("-"):
            option = option_of_letter(word[1])
            name, equals, value = word[1], word[2:], word[2:].removeprefix("=")
        elif word in SEPARATE:
            yield Directive(number, word, "")
            continue
        else:
            # sbatch stops there.
            yield Directive(number, "", " ".join((word, *arguments)))
            return
        takes_next = option.takes == "required" if option else word.startswith("--")
        if not equals and takes_next and arguments and (option or arguments[0][:1] != "-"):
            value = arguments.pop(0)
        yield Directive(number, option.name if option else name, value)
