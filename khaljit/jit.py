"""Kernels: the decorator, and the way of a launch.

A launch reads top to bottom in `Kernel.launch`: signature -> plan found? launch : record -> key
-> cached? load : compile and store -> plan -> launch.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any, Final, final

from khaljit.arguments import Call, Parameters
from khaljit.arrays import Array
from khaljit.backends.base import Device, Target
from khaljit.compiler import Compiled, compile_trace
from khaljit.devices import current_device
from khaljit.devices import target as target_of
from khaljit.dispatch import Dispatch
from khaljit.entries import Signature
from khaljit.extension import NATIVE
from khaljit.grids import Grid, Indirect, Workgroup, groups_of, parse_grid, parse_workgroup
from khaljit.keeping import REWRITTEN
from khaljit.launching import Bound, KernelBase, Launch, bind
from khaljit.loading import load
from khaljit.logs import log, wants
from khaljit.operands import check_operands
from khaljit.origin import Origin
from khaljit.plans import NativePlans, Plan, Sample
from khaljit.specialising import keep_within_bounds
from khaljit.tracer.errors import ArgumentError, ArgumentTypeError, ArgumentValueError, TraceError
from khaljit.tracer.ir import Options, Trace
from khaljit.tracer.record import Recording, record
from khaljit.tracer.recorder import recording, user_site
from khaljit.tracer.records import dataclass
from khaljit.tracer.rewrite import rewrite

__all__ = ["Kernel", "Launch", "jit", "recent"]

# The kernels made last: those that a program has when it opens a device
_RECENT: Final[deque[weakref.ref[Kernel]]] = deque(maxlen=64)


def jit(
    function: Callable[..., None] | None = None,
    *,
    workgroup: int | tuple[int, ...] | None = None,
    contract: bool = True,
    fastmath: bool = False,
    unchecked: bool = False,
    debug: bool = False,
    name: str | None = None,
    salt: str | None = None,
    signatures: Sequence[str] | None = None,
) -> Any:
    """Make a kernel of a function: ``@kj.jit`` or ``@kj.jit(workgroup=256)``.

    Args:
        workgroup: invocations of a workgroup, an int or up to three; the backend chooses if None,
            when nothing in the kernel can see it.
        contract: let a product and a sum become one fused operation.
        fastmath: allow reassociation and the hardware's approximate functions.
        unchecked: leave out bounds checks; an index out of bounds is then undefined behaviour.
        debug: report indices out of bounds with line and invocation.
        name: what the kernel is called in messages; the function's name if None.
        salt: mixed into the cache key.
        signatures: what ``khaljit warm`` compiles, such as ``"f32[:], f32[:]"``.
    """
    options = Options(contract, fastmath, unchecked, debug)
    settings = _Settings(parse_workgroup(workgroup), options, name, salt, tuple(signatures or ()))
    if function is None:
        return lambda function: _make(function, settings)
    return _make(function, settings)


@final
@dataclass(frozen=True, slots=True)
class _Settings:
    workgroup: Workgroup | None
    options: Options
    name: str | None
    salt: str | None
    signatures: tuple[str, ...]

    def unusual(self) -> dict[str, Any]:
        """The arguments of `jit` that change the code and are not the usual ones, as JSON."""
        found: dict[str, Any] = {}
        for name in Options.__match_args__:
            value = getattr(self.options, name)
            if value != getattr(_USUAL, name):
                found[name] = value
        if self.workgroup is not None:
            found["workgroup"] = list(self.workgroup)
        if self.salt is not None:
            found["salt"] = self.salt
        return found


_USUAL: Final = Options()


def _make(function: Any, settings: _Settings) -> Any:
    if isinstance(function, staticmethod):
        return staticmethod(_make(function.__func__, settings))
    if isinstance(function, classmethod):
        raise ArgumentTypeError(
            "a class method is no kernel", mend="make it a static method or a function"
        )
    if not isinstance(function, FunctionType):
        raise _no_function(function)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ArgumentTypeError(
            f"{function.__name__} is async, and kernels are not", mend="write a plain function"
        )
    return Kernel(function, settings, {})


def _no_function(given: Any) -> ArgumentTypeError:
    """What `jit` got instead of a function, and what was meant."""
    mend = "apply it to a function, or to a method inside its class"
    if isinstance(given, Kernel):
        mend = f"{given.name} is a kernel already: leave out one @kj.jit"
    elif isinstance(given, int | tuple):
        mend = f"name the argument: @kj.jit(workgroup={given!r})"
    elif isinstance(given, str):
        mend = "a kernel needs no signature; one to compile ahead is @kj.jit(signatures=[...])"
    elif isinstance(given, functools.partial):
        mend = "apply it to the function, and fix arguments with kernel.with_options(name=value)"
    return ArgumentTypeError(f"@kj.jit is applied to {given!r}", mend=mend)


class Kernel(KernelBase):
    """A kernel. Launch it with ``kernel[grid](*args)``."""

    def __init__(
        self,
        function: FunctionType,
        settings: _Settings,
        constants: Mapping[str, Any],
        owner: Any = None,
    ) -> None:
        super().__init__(settings.workgroup or (1, 1, 1))
        functools.update_wrapper(self, function)
        self.name: Final = settings.name or function.__name__
        self._function: Final = function
        self._settings: Final = settings
        self._constants: Final = dict(constants)
        self._owner: Final = owner  # the instance of a method
        self._plans: dict[tuple[Device, Signature], Plan] = {}
        self._native: Final = NativePlans()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._parameters: Parameters | None = None
        self._bound: weakref.WeakKeyDictionary[Any, Kernel] | None = None
        _RECENT.append(weakref.ref(self))

    def __repr__(self) -> str:
        return f"<khaljit kernel {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if recording() is not None:
            raise _called_in_a_kernel(self.name)
        raise ArgumentTypeError(
            f"kernel {self.name} is called without a grid",
            mend=f"write {self.name}[n](...), where n is the number of invocations",
        )

    def __get__(self, instance: Any, owner: Any = None) -> Kernel:
        """A method's kernel: ``self`` is part of what it is specialised for."""
        if instance is None:
            return self
        if self._bound is None:
            self._bound = weakref.WeakKeyDictionary()
        try:
            found = self._bound.get(instance)
            if found is None:
                found = Kernel(self._function, self._settings, self._constants, instance)
                self._bound[instance] = found
        except TypeError:  # neither hashable nor weakly referable
            found = Kernel(self._function, self._settings, self._constants, instance)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as a reference to the module's own kernel; handles and plans stay behind."""
        return _find, (self._function.__module__, self._function.__qualname__)

    def on(self, grid: Any) -> Launch:
        """The kernel with any grid; what the subscript is for."""
        if isinstance(grid, Indirect):
            return Launch(self, grid)
        extents, counts_groups = parse_grid(grid)
        return Launch(self, groups_of(extents, counts_groups, self._settings.workgroup))

    def with_options(
        self, workgroup: int | tuple[int, ...] | None = None, **constants: Any
    ) -> Kernel:
        """A variant with another workgroup size, or with some parameters fixed to constants."""
        settings = self._settings
        if workgroup is not None:
            settings = _Settings(
                parse_workgroup(workgroup),
                settings.options,
                settings.name,
                settings.salt,
                settings.signatures,
            )
        unknown = set(constants) - set(self._known().names) - set(self._constants)
        if unknown:
            raise ArgumentTypeError(
                f"kernel {self.name} has no parameter {', '.join(sorted(unknown))}",
                mend=f"its parameters are {', '.join(self._known().names)}",
            )
        return Kernel(self._function, settings, {**self._constants, **constants}, self._owner)

    # The way of a launch.

    def launch(
        self, groups: Grid | Indirect, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Run on the device where the arrays live."""
        self.prepare(groups, args, kwargs).launch()

    def prepare(
        self, groups: Grid | Indirect, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Dispatch:
        """Everything about a launch but running it: the kernel is compiled, arguments checked."""
        try:
            call = self._read(args, kwargs)
        except (ArgumentTypeError, TraceError):
            if recording() is not None:  # the arguments are another kernel's
                raise _called_in_a_kernel(self.name) from None
            raise
        device = _device_of(self.name, call)
        signature = call.signature(self._reach(groups))
        plan = self._plans.get((device, signature))
        if plan is None or not plan.holds():
            if plan is not None and wants("cache"):
                log("cache", f"{self.name} is recorded again: {', '.join(plan.changes())} changed")
            plan = self._plan(device, signature)
        check_operands(self.name, call.operands, plan.written)
        dispatch = Dispatch(
            self.name,
            device,
            plan.loaded,
            call.operands,
            call.numbers,
            groups,
            plan.written,
            plan.strides,
            plan.guards,
        )
        if NATIVE is not None and self._native.is_new(plan, args, kwargs):
            values = self._known().bind(args, {**self._constants, **kwargs})
            sample = Sample(self._known(), values, len(args), tuple(kwargs), call, signature)
            self._native.learn(self, sample, plan, device)
        return dispatch

    def bind_launch(
        self, launch: Launch, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Bound:
        """A launch of this kernel with arguments that stay."""
        return bind(launch, self._known(), args, kwargs)

    def _plan(self, device: Device, signature: Signature) -> Plan:
        recording = self._undisturbed(signature) if device.steps else self._record(signature)
        compiled = compile_trace(recording.trace, device.target, self._origin(signature))
        self._counts["cached" if compiled.cached else "compiled"] += 1
        trace = recording.trace
        if device.steps:
            arguments = self._known().recorded(signature)
            loaded = device.load_function(self._function, arguments, self._receiver, trace)
        else:
            loaded = load(device, compiled)
        plan = Plan.of(recording, compiled, loaded)
        with self._lock:
            self._plans[device, signature] = plan
            warns = not (self._function.__module__ or "").startswith("khaljit.")
            keep_within_bounds(self.name, self._known().names, self._plans, warns=warns)
        return plan

    def _undisturbed(self, signature: Signature) -> Recording:
        """A recording in which no debugger stops, since the function itself will run."""
        from khaljit.debuggers import no_debugger  # for devices that one debugs on

        with no_debugger():
            return self._record(signature, quiet=True)

    def _record(self, signature: Signature, quiet: bool = False) -> Recording:
        self._counts["recorded"] += 1
        parameters = self._known().recorded(signature)
        return record(
            self._function,
            parameters,
            bound=self._receiver,
            workgroup=self._settings.workgroup,
            options=self._settings.options,
            index_bits=signature.index_bits,
            name=self.name,
            quiet=quiet,
            keeper=REWRITTEN,
        )

    @property
    def _receiver(self) -> tuple[Any, ...]:
        """What a method's kernel is called with before its arguments."""
        return () if self._owner is None else (self._owner,)

    def _known(self) -> Parameters:
        """The parameters; read at the first use, when all names in annotations exist."""
        if self._parameters is None:
            skip = 0 if self._owner is None else 1
            self._parameters = Parameters.of(self._function, self.name, skip)
        return self._parameters

    def _read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        parameters = self._known()
        if self._constants:
            kwargs = {**self._constants, **kwargs}
        return parameters.read(parameters.bind(args, kwargs))

    def _reach(self, groups: Grid | Indirect) -> int:
        """The largest id of a grid along any axis; one that the device reads is taken as small."""
        if isinstance(groups, Indirect):
            return 0
        sizes = self._settings.workgroup or (1, 1, 1)
        return max(count * size for count, size in zip(groups, sizes, strict=True))

    def rewrite_ahead(self) -> None:
        """Have the function rewritten before it is recorded, which then tells what is wrong."""
        with suppress(TraceError):
            rewrite(self._function, REWRITTEN)

    # Looking.

    def trace(self, *args: Any, **kwargs: Any) -> Trace:
        """The trace that arguments record; they may be one text such as ``"f32[:], i32"``."""
        return self._record(self._signature(args, kwargs)[0]).trace

    def compile(self, *args: Any, target: Target | str | None = None, **kwargs: Any) -> Compiled:
        """Compile, or find in the cache, the code for arguments or a text such as ``"f32[:]"``.

        ``target`` may be one whose device is not here, such as ``"cuda:sm_90"``
        (`khaljit.devices.target`); by default it is the device's own.
        """
        compiled = compile_trace(*self.request(*args, target=target, **kwargs))
        self._counts["cached" if compiled.cached else "compiled"] += 1
        return compiled

    def source(
        self, stage: str, *args: Any, target: Target | str | None = None, **kwargs: Any
    ) -> str:
        """The code of a stage, for arguments or a text: ``kernel.source("llvm", "f32[:]")``.

        Stages are ``trace``, ``lowered``, ``legal`` and those of the target: ``llvm`` and ``asm``
        on the CPU.
        """
        from khaljit.tracer.passes.contract import contract  # for those who look

        trace, chosen, _ = self.request(*args, target=target, **kwargs)
        return chosen.show(contract(trace), stage)

    def request(
        self, *args: Any, target: Target | str | None = None, **kwargs: Any
    ) -> tuple[Trace, Target, Origin]:
        """What `compile` asks `compile_trace` for."""
        signature, call = self._signature(args, kwargs)
        if target is None:
            target = (_device_of(self.name, call) if call else current_device()).target
        elif isinstance(target, str):
            target = target_of(target)
        return self._record(signature).trace, target, self._origin(signature)

    def _signature(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Signature, Call | None]:
        """What arguments, or one text in their place, ask for."""
        if len(args) == 1 and isinstance(args[0], str) and not kwargs:
            return self._parsed(args[0]), None
        call = self._read(args, kwargs)
        return call.signature(0), call

    def _origin(self, signature: Signature) -> Origin:
        return Origin(self, signature, self._settings.unusual())

    @property
    def specialisations(self) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """What ``khaljit warm`` compiles: each of the signatures that the kernel declares, with the
        options that are not the usual ones."""
        options = self._settings.unusual()
        return tuple((text, options) for text in self._settings.signatures)

    @staticmethod
    def is_same(one: Any, other: Any) -> bool:
        """Whether both are kernels of one function, whatever their options."""
        return (
            isinstance(one, Kernel)
            and isinstance(other, Kernel)
            and one._function is other._function
            and one._owner is other._owner
        )

    def reads_as(self, text: str, signature: Signature) -> bool:
        """Whether a text stands for a signature."""
        try:
            return self._parsed(text) == signature
        except ArgumentError:
            return False

    def _parsed(self, text: str) -> Signature:
        from khaljit.signatures import parse_signature  # for those who compile without arguments

        return parse_signature(text, self._known())

    def cache_info(self) -> dict[str, int]:
        """How often this kernel was recorded, compiled, and found in the cache."""
        return {name: self._counts[name] for name in ("recorded", "compiled", "cached")}


def recent() -> list[Kernel]:
    """The kernels that were made last and are still there, the latest first."""
    found = [reference() for reference in reversed(tuple(_RECENT))]
    return [kernel for kernel in found if kernel is not None]


def _called_in_a_kernel(name: str) -> TraceError:
    return TraceError(
        f"kernel {name} is called in a kernel",
        at=user_site(),
        mend="kernels are launched from the host: make what both need a plain function",
    )


def _find(module: str, qualname: str) -> Kernel:
    import importlib

    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    assert isinstance(found, Kernel)
    return found


def _device_of(kernel: str, call: Call) -> Device:
    """Where the arrays of a call live; the current device when they are all NumPy's."""
    found: Device | None = None
    numpy: str | None = None
    for operand in call.operands:
        owner = operand.owner
        if not isinstance(owner, Array):
            numpy = operand.name
        elif found is None:
            found = owner.device
        elif owner.device is not found:
            raise ArgumentValueError(
                f"kernel {kernel}: the arrays of one launch live on {found} and {owner.device}",
                mend="copy them to one device: device.array(a.numpy())",
            )
    if found is None:
        return current_device()
    if numpy is not None:
        raise ArgumentTypeError(
            f"kernel {kernel}: parameter {numpy} got a NumPy array beside arrays on {found}",
            mend=f"copy it to the device: device.array({numpy})",
        )
    return found
