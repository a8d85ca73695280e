"""MkDocs hooks: pages outside `docs/`, links that work on the site and in the repository, generated references.

The Markdown files keep relative links, so that they work in the repository as well. On the site, links to files that
are not pages become plain text, or links to the repository if `repo_url` is set. No state.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
ROOT_PAGES = (
    "README.md",
    "README.zh.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
)
"""Files of the repository root that are pages of the site."""
OPENAPI = ROOT / "tests" / "frozen" / "recorded" / "openapi.json"
"""The recorded OpenAPI document. A test keeps it equal to that of the server."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_METHODS = ("get", "post", "put", "patch", "delete")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages of the repository root and the references of commands and HTTP routes."""
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    reference = http_reference(json.loads(OPENAPI.read_text(encoding="utf-8")))
    files.append(File.generated(config, "reference/http.md", content=reference))
    files.append(File.generated(config, "reference/commands.md", content=command_reference()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point relative links to pages of the site."""
    source = page.file.src_uri
    folder = posixpath.dirname(source) if source in ROOT_PAGES else posixpath.join("docs", posixpath.dirname(source))
    site_folder = posixpath.dirname(source) or "."

    def replace(match: re.Match[str]) -> str:
        image, text, link = match.groups()
        if re.match(r"[a-z]+:|#", link):
            return match[0]
        path, mark, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(folder, path))
        uri = target if target in ROOT_PAGES else target.removeprefix("docs/")
        if (target in ROOT_PAGES or target.startswith("docs/")) and files.get_file_from_path(uri):
            return f"{image}[{text}]({posixpath.relpath(uri, site_folder)}{mark}{anchor})"
        if not (ROOT / target).exists():
            return match[0]  # reported by MkDocs
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{target})" if config.repo_url else text

    return _LINK.sub(replace, markdown)


def command_reference() -> str:
    """Markdown with the help of every command. The command line imports torch only when a command runs."""
    sys.path.insert(0, str(ROOT))
    try:
        from legato.cli.main import legato
    finally:
        sys.path.remove(str(ROOT))
    lines = ["# Commands", "", "The help of every command, as printed by `--help`.", ""]
    for name, text in _help_texts(legato, click.Context(legato, info_name="legato", max_content_width=100)):
        lines += [f"## `{name}`", "", "```text", text, "```", ""]
    return "\n".join(lines)


def _help_texts(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _help_texts(
                    inner, click.Context(inner, parent=context, info_name=name, max_content_width=100)
                )


def http_reference(document: dict[str, Any]) -> str:
    """Markdown with a section for each route: description, parameters, fields of the request, responses."""
    lines = [
        "# HTTP reference",
        "",
        "Generated from the OpenAPI document, which a running server has at `/openapi.json`.",
    ]
    lines += ["[server.md](../server.md) describes the routes with examples.", ""]
    for path, operations in document["paths"].items():
        for method in _METHODS:
            if method in operations:
                lines += _operation(method, path, operations[method], document)
    return "\n".join(lines)


def _operation(method: str, path: str, operation: dict[str, Any], document: dict[str, Any]) -> list[str]:
    lines = [f"## `{method.upper()} {path}`", ""]
    lines += [text + "\n" for text in (operation.get("summary"), operation.get("description")) if text]
    parameters = operation.get("parameters", [])
    if parameters:
        lines += _table([(each["name"], each["in"], each.get("schema", {})) for each in parameters], "in", document)
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = _resolve(content.get("schema", {}), document)
        required = set(schema.get("required", ()))
        fields = [
            (name, "yes" if name in required else "", each) for name, each in schema.get("properties", {}).items()
        ]
        lines += [f"Request body, `{kind}`:", "", *_table(fields, "required", document)]
    responses = ", ".join(
        f"`{status}`" + (f" ({', '.join(f'`{kind}`' for kind in content)})" if content else "")
        for status, response in operation.get("responses", {}).items()
        for content in [response.get("content", {})]
    )
    return [*lines, f"Responses: {responses}", ""]


def _table(rows: list[tuple[str, str, dict[str, Any]]], second: str, document: dict[str, Any]) -> list[str]:
    lines = [f"| name | {second} | type | |", "|---|---|---|---|"]
    for name, note, schema in rows:
        description = " ".join(str(schema.get("description", "")).split()).replace("|", "\\|")
        lines.append(f"| `{name}` | {note} | {_type(schema, document)} | {description} |")
    return [*lines, ""]


def _type(schema: dict[str, Any], document: dict[str, Any]) -> str:
    """The type of a schema in a few words, such as `integer or null`."""
    schema = _resolve(schema, document)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type(each, document) for each in schema[key]))
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    kind = str(schema.get("type", "any"))
    return f"{kind} of {_type(schema['items'], document)}" if kind == "array" and "items" in schema else kind


def _resolve(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """The schema that a `$ref` names."""
    while "$ref" in schema:
        found: Any = document
        for key in schema["$ref"].removeprefix("#/").split("/"):
            found = found[key]
        schema = found
    return schema
