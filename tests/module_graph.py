"""The picture of docs/architecture.md: who imports whom, folder by folder.

``python -m tests.module_graph`` draws it anew. An arrow that follows from others is left out, so
are files beside the folders that import none of them: errors, exit statuses, the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

DOCUMENT = Path(__file__).parents[1] / "docs" / "architecture.md"
ROOTS = ("dflashd.supervisor", "dflashd.worker")
BEGIN = "<!-- drawn by python -m tests.module_graph -->\n"
END = "<!-- end of the drawing -->\n"

Edges = Mapping[str, set[str]]


def edges(root: str) -> Edges:
    """Folders and files right below ``root``, in the order of the alphabet: what each imports."""
    graph = grimp.build_graph(root)
    inside = {child: {child, *graph.find_descendants(child)} for child in graph.find_children(root)}
    home = {module: child for child, modules in inside.items() for module in modules}
    found = {
        child: {
            home[imported]
            for module in modules
            for imported in graph.find_modules_directly_imported_by(module)
            if imported in home
        }
        for child, modules in sorted(inside.items())
    }
    aids = {child for child, modules in inside.items() if len(modules) == 1}
    while needy := {aid for aid in aids if found[aid] - aids}:
        aids -= needy
    return {child: tos - aids - {child} for child, tos in found.items() if child not in aids}


def reduced(all_edges: Edges) -> Edges:
    """Without arrows that a longer way shows, too."""
    reach: dict[str, set[str]] = {}
    for name in TopologicalSorter(all_edges).static_order():
        reach[name] = set(all_edges[name]).union(*(reach[to] for to in all_edges[name]))
    return {
        name: {to for to in tos if not any(to in reach[other] for other in tos - {to})}
        for name, tos in all_edges.items()
    }


def drawing() -> str:
    """All of it as one Mermaid chart."""
    lines = ["```mermaid", "flowchart TD"]
    for root in ROOTS:
        lines.append(f"  subgraph {root.removeprefix('dflashd.')}")
        arrows = reduced(edges(root))
        for name, tos in arrows.items():
            lines.append(f"    {node(name)}[{name.rpartition('.')[2]}]")
            lines += [f"    {node(name)} --> {node(to)}" for to in sorted(tos)]
        lines.append("  end")
    lines += ["  supervisor --> protocol", "  worker --> protocol", "```"]
    return "\n".join(lines) + "\n"


def node(name: str) -> str:
    """A module's name in the chart's language."""
    return name.removeprefix("dflashd.").replace(".", "_")


def drawn() -> str:
    """What the document shows now."""
    return DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    before, begin, rest = DOCUMENT.read_text().partition(BEGIN)
    DOCUMENT.write_text(before + begin + drawing() + END + rest.partition(END)[2])
