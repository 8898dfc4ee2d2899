"""Frozen value classes without the cost of ``dataclasses``.

``dataclasses`` imports ``inspect`` and compiles methods for every class. It takes about 20 ms at each
start of an agent, and 1,250 agents start at once. A type checker sees ``frozen`` as the standard decorator.
``Any`` is that of ``typing``, without its import.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any as Any
    from typing import TypeVar

    from typing_extensions import dataclass_transform

    T = TypeVar("T")

    @dataclass_transform(frozen_default=True)
    def frozen(cls: type[T]) -> type[T]: ...

else:
    Any = object

    def frozen(cls):
        """Make ``cls`` a frozen value. Its annotated names are its fields, in order, with their defaults.

        ``__post_init__`` runs after the fields are set, and may raise. Equality and hash depend on class
        and fields. An assignment raises ``AttributeError``.
        """
        names = tuple(cls.__dict__.get("__annotations__", ()))
        defaults = {name: cls.__dict__[name] for name in names if name in cls.__dict__}
        cls.__fields__ = names
        cls.__all_fields__ = frozenset(names)
        cls.__match_args__ = names
        cls.__defaults_of_fields__ = defaults
        cls.__init__ = _init
        cls.__setattr__ = _refuse
        cls.__delattr__ = _refuse
        cls.__eq__ = _equal
        cls.__hash__ = _hash
        cls.__repr__ = _repr
        for name, former in getattr(cls, "FORMER_NAMES", {}).items():
            setattr(cls, former, property(lambda self, name=name: getattr(self, name)))
        return cls


def fields(value: object) -> dict[str, Any]:
    """Return the fields of a frozen value by name, in order. Nested values are not converted."""
    return {name: getattr(value, name) for name in value.__fields__}  # type: ignore[attr-defined]


def replace(value: T, **changes: Any) -> T:
    """Return a copy of a frozen value with some fields changed, and validate it again."""
    return type(value)(**{**fields(value), **changes})


def _init(self: Any, *args: Any, **named: Any) -> None:
    if args or named.keys() != self.__all_fields__:
        names = self.__fields__
        if len(args) > len(names):
            raise TypeError(f"{type(self).__name__} takes {len(names)} fields, got {len(args)}")
        positional = dict(zip(names, args))
        values = {**self.__defaults_of_fields__, **positional, **named}
        if len(values) != len(names) or (positional and not positional.keys().isdisjoint(named)):
            wrong = (positional.keys() & named.keys()) | (named.keys() - set(names))
            if wrong:
                raise TypeError(f"{type(self).__name__}: field given twice or unknown: {sorted(wrong)}")
            missing = [name for name in names if name not in values]
            raise TypeError(f"{type(self).__name__} lacks {', '.join(missing)}")
        named = values
    self.__dict__.update(named)
    check = getattr(self, "__post_init__", None)
    if check is not None:
        check()


def _refuse(self: object, name: str, value: object = None) -> None:
    raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be changed")


def _equal(self: object, other: object) -> bool:
    return type(self) is type(other) and fields(self) == fields(other)


def _hash(self: object) -> int:
    return hash((type(self), tuple(fields(self).values())))


def _repr(self: object) -> str:
    return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in fields(self).items())})"
