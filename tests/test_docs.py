"""Every Python block of the README and of the pages in docs/ runs, a page's blocks in order in one namespace.

A block's language may be followed by one word more:

    python no-run    compiled and not run: it wants a target, a file or a run of its own
    python raises    raises an error, whose message is the text block behind it ('…' stands for any text)
    text printed     is what the page's blocks have printed up to here, or a part of it ('…' as above; 'train.py:3'
                     stands for any file and line)
"""

import dataclasses
import pathlib
import re

import pytest

from shardwright import _compat

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").glob("*.md") if page.stem != "log")]
LOCKED_JAX = re.search(r"^jax==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)[1]
SLOW = {"README.md", "first-plan.md", "your-own-script.md", "proof.md"}

# tests/conftest.py has asked for the devices already, and jax takes no second wish.
DEVICES = 'jax.config.update("jax_num_cpu_devices", 8)'


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: the words behind its fence, the line of the page that it starts on, its text."""

    words: tuple[str, ...]
    line: int
    text: str


def blocks(page: pathlib.Path) -> list[Block]:
    found, words, start, lines = [], None, 0, []
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        fence = re.fullmatch(r"```(.*)", line)
        if fence and words is None:
            words, start, lines = tuple(fence[1].split()), number + 1, []
        elif fence:
            found.append(Block(words, start, "\n".join(lines)))
            words = None
        else:
            lines.append(line)
    assert words is None, f"{page.name}: the block at line {start} has no end"
    return found


def code(page: pathlib.Path, block: Block):
    """The block compiled so that errors and plans tell the page's own lines, as if the page were a script."""
    return compile("\n" * (block.line - 1) + block.text.replace(DEVICES, "pass"), f"{page.stem}.py", "exec")


def message_pattern(text: str) -> str:
    """Words of the documented message in order, with any text for each ellipsis."""
    return r"\s+".join(".*".join(map(re.escape, word.split("…"))) for word in text.split())


def printed_pattern(text: str) -> str:
    """Likewise, of a page that calls itself train.py."""
    return re.sub(r"train\\\.py:\d+", r"[\\w-]+\\.py:\\d+", message_pattern(text))


@pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.name, marks=[pytest.mark.slow] * (p.name in SLOW)) for p in PAGES]
)
def test_every_block_of_the_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path / "cache"))
    namespace: dict = {"__name__": "__main__"}
    printed = ""
    every = blocks(page)
    for block, behind in zip(every, [*every[1:], None], strict=True):
        match block.words:
            case ("python",):
                exec(code(page, block), namespace)
                printed += capsys.readouterr().out
            case ("text", "printed") if _compat.JAX_VERSION != LOCKED_JAX:
                pass  # another jax traces a step to other operations, and their numbers and names are printed
            case ("text", "printed"):
                shown = re.search(printed_pattern(block.text), printed, re.DOTALL)
                assert shown, f"{page.name}:{block.line} does not show what is printed now:\n{printed}"
            case ("python", "no-run"):
                code(page, block)
            case ("python", "raises"):
                with pytest.raises(Exception) as raised:
                    exec(code(page, block), namespace)
                assert behind and behind.words == ("text",), f"{page.name}:{block.line} shows no message"
                assert re.search(message_pattern(behind.text), str(raised.value), re.DOTALL), str(raised.value)
            case ("python", *other):
                pytest.fail(f"{page.name}:{block.line}: unknown words {other}")


def test_what_a_page_shows_is_compared_word_by_word():
    shown = printed_pattern("a  2.10 MB train.py:3 (f)\n … last")
    assert re.search(shown, "head\na 2.10 MB\n  my-page.py:17 (f) b\nc last", re.DOTALL)
    assert not re.search(shown, "a 2.11 MB my-page.py:17 (f) b last", re.DOTALL)
    assert not re.search(shown, "a 2.10 MB my-page.py:17 (g) b last", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8")):
        assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"
