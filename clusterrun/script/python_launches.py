"""Find launchers (srun, torchrun, mpirun, …) that a Python script starts as processes."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from typing import Union

from clusterrun.model.frozen import replace
from clusterrun.script.interpreter_calls import inline_text
from clusterrun.script.launch_commands import LaunchCommand, launch_in, shell_launches

# Stands for a part of a command that only running the script shows.
UNKNOWN = "…"
_FIRST_ARGUMENT = ("os.system", "os.popen", "pty.spawn", "asyncio.create_subprocess_shell")
_ALL_ARGUMENTS = ("asyncio.create_subprocess_exec",)
_WITH_ARGV = ("os.exec", "os.spawn", "os.posix_spawn")
# A shell line, or the words of a command. None: only running the script shows it.
_Value = Union[str, "tuple[str, ...]", None]


def python_launches(tree: ast.Module) -> Iterator[tuple[int, LaunchCommand]]:
    """Yield the line number and the launcher of each call that starts one.

    A launcher has no ``command`` if a part of it is unknown.
    """
    reader = _Reader(tree)
    nodes = (node for node in ast.walk(tree) if isinstance(node, (ast.stmt, ast.expr)))
    for node in sorted(nodes, key=lambda node: node.lineno):
        reader.remember(node)
        if not isinstance(node, ast.Call):
            continue
        if launch := _launch_of(reader.command_of(node)):
            is_certain = not any(UNKNOWN in word for word in launch.command)
            yield node.lineno, launch if is_certain else replace(launch, command=())


def _launch_of(command: _Value) -> LaunchCommand | None:
    if not command:
        return None
    text = command if isinstance(command, str) else inline_text(command)
    if not isinstance(command, str) and len(command) == 1:
        text = command[0]
    if text:
        return next((launch for _, launch in shell_launches(text)), None)
    return launch_in(command) if isinstance(command, tuple) else None


class _Reader:
    """Evaluates strings and lists of strings, in the order of the script's lines."""

    def __init__(self, tree: ast.Module) -> None:
        self._modules: dict[str, str] = {}
        self._variables: dict[str, _Value] = {}
        # Functions of the script that start the command that a caller passes.
        self._own_starters: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._modules.update((name.asname, name.name) for name in node.names if name.asname)
            elif isinstance(node, ast.ImportFrom):
                names = ((name.asname or name.name, f"{node.module}.{name.name}") for name in node.names)
                self._modules.update(names)
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.args.args:
                calls = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]
                if any(self._argument_of(call) for call in calls):
                    self._own_starters.add(node.name)

    def remember(self, node: ast.AST) -> None:
        """Keep the value of a variable that ``node`` sets or extends."""
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self._variables[target.id] = self._value(node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            self._variables[node.target.id] = self._value(node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            before = self._variables.get(node.target.id)
            self._variables[node.target.id] = _sum(before, self._value(node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            variable, method = node.func.value, node.func.attr
            if isinstance(variable, ast.Name) and method in ("append", "extend"):
                more = self._value(node.args[0])
                if method == "append":
                    more = (more if isinstance(more, str) else UNKNOWN,)
                self._variables[variable.id] = _sum(self._variables.get(variable.id), more)

    def command_of(self, call: ast.Call) -> _Value:
        """Return the command that ``call`` starts; None if it starts none, or an unknown one."""
        name = self._name(call.func)
        if name in _ALL_ARGUMENTS:
            return self._words(call.args)
        if name.startswith(_WITH_ARGV):
            values = [self._value(argument) for argument in call.args]
            argv = next((value for value in values if isinstance(value, tuple)), None)
            # The first string is the program's path; its arguments begin with its name.
            return argv or tuple(value for value in values if isinstance(value, str))[1:]
        argument = self._argument_of(call)
        if argument is None and name in self._own_starters and call.args:
            argument = call.args[0]
        return self._value(argument) if argument else None

    def _argument_of(self, call: ast.Call) -> ast.expr | None:
        name = self._name(call.func)
        if not (name.startswith("subprocess.") or name in _FIRST_ARGUMENT):
            return None
        keyword = next((keyword.value for keyword in call.keywords if keyword.arg == "args"), None)
        return call.args[0] if call.args else keyword

    def _name(self, function: ast.expr) -> str:
        """Return the dotted name of ``function`` with the module's own name; '' for other expressions."""
        attributes: list[str] = []
        while isinstance(function, ast.Attribute):
            attributes.append(function.attr)
            function = function.value
        if not isinstance(function, ast.Name):
            return ""
        return ".".join((self._modules.get(function.id, function.id), *reversed(attributes)))

    def _words(self, elements: list[ast.expr]) -> tuple[str, ...]:
        texts: list[str] = []
        for element in elements:
            value = self._value(element.value if isinstance(element, ast.Starred) else element)
            is_list = isinstance(element, ast.Starred) and isinstance(value, tuple)
            texts += value if is_list and value else (value if isinstance(value, str) else UNKNOWN,)
        return tuple(texts)

    def _value(self, expression: ast.expr) -> _Value:
        if isinstance(expression, ast.Constant):
            return str(expression.value) if isinstance(expression.value, (str, int)) else None
        if isinstance(expression, ast.Name):
            return self._variables.get(expression.id)
        if isinstance(expression, (ast.List, ast.Tuple)):
            return self._words(expression.elts)
        if isinstance(expression, ast.JoinedStr):
            return "".join(self._words(expression.values))
        if isinstance(expression, ast.FormattedValue):
            return self._value(expression.value)
        if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add):
            return _sum(self._value(expression.left), self._value(expression.right))
        if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Mod):
            template = self._value(expression.left)
            return re.sub(r"%[-\w.]*[a-z]", UNKNOWN, template) if isinstance(template, str) else None
        if isinstance(expression, ast.Attribute):
            return "python" if self._name(expression) == "sys.executable" else None
        return self._value_of_call(expression) if isinstance(expression, ast.Call) else None

    def _value_of_call(self, call: ast.Call) -> _Value:
        argument = self._value(call.args[0]) if call.args else None
        name = self._name(call.func)
        if name in ("str", "list", "tuple"):
            return argument
        if name == "shlex.split":
            return _split(argument)
        if name == "shlex.join":
            return shlex.join(argument) if isinstance(argument, tuple) else None
        if isinstance(call.func, ast.Attribute):
            text = self._value(call.func.value)
            if call.func.attr == "format" and isinstance(text, str):
                return re.sub(r"\{[^{}]*\}", UNKNOWN, text)
            if call.func.attr == "split" and not call.args:
                return _split(text)
            if call.func.attr == "join" and isinstance(text, str) and isinstance(argument, tuple):
                return text.join(argument)
        return None


def _split(text: _Value) -> _Value:
    try:
        return tuple(shlex.split(text)) if isinstance(text, str) else None
    except ValueError:
        return None


def _sum(first: _Value, second: _Value) -> _Value:
    if isinstance(first, tuple):
        return (*first, *(second if isinstance(second, tuple) else (UNKNOWN,)))
    if isinstance(first, str):
        return first + (second if isinstance(second, str) else UNKNOWN)
    return None
