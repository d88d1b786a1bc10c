"""Run the notebooks in examples, keep what they show in them, and make pages of them.

``python -m tools.notebooks [FILE ...]`` runs the cells of each notebook in one namespace, as
Jupyter does: what is printed, the value of the last line, and figures are kept below the cell. It
needs nothing but this package. A test runs them again and compares the texts.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
DPI = 80


def read(path: Path) -> dict[str, Any]:
    """Read a notebook."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Cells with code, in order."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def execute(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Run the code cells, and return the outputs of each."""
    space: dict[str, Any] = {"__name__": "__main__"}
    return [
        _run("".join(cell["source"]), space, n) for n, cell in enumerate(code_cells(notebook), 1)
    ]


def _run(source: str, space: dict[str, Any], number: int) -> list[dict[str, Any]]:
    tree = ast.parse(source, f"<cell {number}>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"<cell {number}>", "exec"), space)  # noqa: S102  a notebook of ours
        if isinstance(last, ast.Expr):
            shown = compile(ast.Expression(last.value), f"<cell {number}>", "eval")
            value = eval(shown, space)  # noqa: S307
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(text)})
    if value is not None:
        outputs.append(
            {
                "output_type": "execute_result",
                "execution_count": number,
                "metadata": {},
                "data": _shown(value),
            }
        )
    return outputs


def _shown(value: Any) -> dict[str, Any]:
    """A value as notebooks keep it, by type of medium."""
    if isinstance(value, Figure):
        drawn = io.BytesIO()
        value.savefig(drawn, format="png", dpi=DPI, metadata={"Software": None})
        image = base64.b64encode(drawn.getvalue()).decode()
        return {"image/png": image, "text/plain": ["<Figure>"]}
    data = {"text/plain": _lines(repr(value))}
    if hasattr(value, "_repr_html_") and (made := value._repr_html_()):
        data["text/html"] = _lines(made)
    return data


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def texts(outputs: list[dict[str, Any]]) -> list[str]:
    """What outputs say in plain text."""
    parts = (one.get("text") or one.get("data", {}).get("text/plain", []) for one in outputs)
    return ["".join(part) for part in parts]


def page(path: Path) -> str:
    """Return a notebook as a page of Markdown, with its outputs."""
    made: list[str] = []
    for cell in read(path)["cells"]:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            made.append(source)
            continue
        made.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            image = output.get("data", {}).get("image/png")
            if image:
                made.append(f"![What the cell above draws](data:image/png;base64,{image})")
            else:
                made.append(f"```text\n{texts([output])[0].rstrip()}\n```")
    made.append(f"As a notebook: `{path.relative_to(EXAMPLES.parent).as_posix()}`.")
    return "\n\n".join(made) + "\n"


def main(arguments: list[str]) -> int:
    """Run notebooks and write what they show."""
    for path in [Path(name) for name in arguments] or sorted(EXAMPLES.glob("*.ipynb")):
        notebook = read(path)
        results = execute(notebook)
        for number, (cell, outputs) in enumerate(
            zip(code_cells(notebook), results, strict=True), 1
        ):
            cell["outputs"], cell["execution_count"] = outputs, number
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path.name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
