# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Rewriting a syntax tree: the control flow of a function becomes calls of the operators of :mod:`.operators`.

The rewritten function keeps the user's file and line numbers, globals and closure cells. Bodies stay in place (they are
not moved into nested functions): an ``if`` becomes a loop that runs each side that has to be looked at, a ``break``,
``continue`` or ``return`` becomes an exception that the operators catch. For example::

    if c: x = f(x)

becomes, in outline::

    _if1 = _dy.if_(c, ("x",), False, locals())
    while _if1.next():
        with _if1:
            if _if1.restore: x = _if1.env["x"]
            if _if1.side: x = _dy.call(f, x)
            if _if1.symbolic: _if1.leave(locals())
    if _if1.merged: x = _if1.env["x"]

Nothing depends on the rewriting for its correctness: a truth test that was not rewritten (in a comprehension, a
``match`` guard, a library) reaches ``__bool__`` of the value itself, which forks.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

from dycl_tvm.frontend.python.source.comprehensions import ComprehensionRewriter
from dycl_tvm.frontend.python.source.locate import FunctionNode
from dycl_tvm.frontend.python.source.patterns import Singletons, class_depth
from dycl_tvm.frontend.python.source.syntax import (
    OPERATORS,
    OWN_NAME,
    asks_for_variables,
    can_stand_alone,
    captured_names,
    in_block,
    is_about_namespaces,
    jumps,
    last_name,
    locals_call,
    middle_of_chain,
    names_of,
    only_raises,
    operator_call,
    operator_named,
    operators_name,
    place,
    placed,
    statements_from,
    type_params,
    walk_scope,
    without_annotations,
    yields,
)

#: Contexts that a jump may leave without their exit being replayed for the other side.
_HARMLESS_CONTEXTS = {"no_grad", "inference_mode", "enable_grad", "set_grad_enabled", "autocast", "record_function"}


#: Operators of which containers have some.
_MAKING = (ast.Add, ast.Sub, ast.Mult, ast.BitOr, ast.BitAnd, ast.BitXor)


class Rewriter(ComprehensionRewriter):
    """Rewrites one function. ``self.context`` is the stack of statements around the one at hand, within the function."""

    def __init__(self, filename: str, class_name: str) -> None:
        super().__init__(filename, class_name)
        self.context: list[tuple[str, str]] = []  # (kind, name): kind is "if", "loop" or "barrier"
        self.first_argument = ""
        self.has_frame = self.yields = False
        self.yielding: set[str] = set()  # the loops that yield

    # -- functions ------------------------------------------------------------------------------------------------
    def function(self, node: FunctionNode, outer: frozenset[str] = frozenset()) -> Any:
        """Rewrite a function definition or a lambda; ``outer`` are the variables of functions around it."""
        args = node.args
        every = args.posonlyargs + args.args
        self.first_argument = every[0].arg if every else ""
        bare = ast.arguments(
            args.posonlyargs,
            args.args,
            args.vararg,
            args.kwonlyargs,
            [None if d is None else ast.Constant(None) for d in args.kw_defaults],
            args.kwarg,
            [ast.Constant(None) for _ in args.defaults],
        )
        bare = without_annotations(bare)
        if isinstance(node, ast.Lambda):
            self.function_name, self.unsure = "<lambda>", set(outer)
            return ast.copy_location(ast.Lambda(bare, self.visit(node.body)), node)
        self.function_name = node.name
        body = node.body
        for n in walk_scope(body):
            if isinstance(n, ast.Global):
                self.globals.update(n.names)
        self.has_frame = any(isinstance(n, ast.Return) for n in walk_scope(body))
        self.yields = yields(body)
        self.unsure = self._may_be_unset(body) | outer | captured_names(body)
        captured = captured_names(body)
        asks = any(asks_for_variables(n) for statement in body for n in ast.walk(statement))
        cells = [n for n in self._assigned(body) if n in outer or n in captured]
        new = self._body(body)
        if self.has_frame:
            own = tuple(n for n in cells if n not in outer)
            arguments = f"lambda: ({', '.join(cells)},), {own}" if cells else ""
            new = statements_from(
                f"_frame = DY.frame({arguments})\nwith _frame:\n    BODY\nreturn _frame.value", node, DY=operators_name(), BODY=new
            )
        if asks:
            new = [*statements_from(f"{OPERATORS}.shows_locals()", node), *new]
        if args.kwarg is not None:  # a dict that Python makes for this call
            new = [*statements_from(f"{OPERATORS}.new({args.kwarg.arg})", node), *new]
        return ast.copy_location(ast.FunctionDef(node.name, bare, new, [], None, **type_params()), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """Leave nested functions as they are: they are rewritten when they are called."""
        self._visit_defaults(node.args)
        return self._decorated(node)

    def _decorated(self, node: Any) -> list[ast.stmt]:
        """Return a definition whose decorators are called like any function."""
        names = [self._fresh("decorator") for _ in node.decorator_list]
        before = [placed(ast.Assign([ast.Name(n, ast.Store())], self.visit(d)), node) for n, d in zip(names, node.decorator_list)]
        node.decorator_list = []
        calls = [f"{node.name} = {OPERATORS}.call({n}, {node.name})" for n in reversed(names)]
        after = [f"{node.name} = {OPERATORS}.new({node.name})", *calls]
        return [*before, node, *statements_from("\n".join(after), node)]

    def _visit_defaults(self, args: ast.arguments) -> None:
        args.defaults = [self.visit(d) for d in args.defaults]
        args.kw_defaults = [None if d is None else self.visit(d) for d in args.kw_defaults]

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        """Leave nested functions as they are."""
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        """Leave nested functions as they are."""
        self._visit_defaults(node.args)
        return operator_call("new", node, node)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        """Rewrite what the body of a nested class does; its methods are rewritten when they are called."""
        node.bases = [self.visit(b) for b in node.bases]
        node.keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in node.keywords]
        inner = ClassBodyRewriter(self.filename, node.name)
        inner.first_argument, inner.function_name, inner.unsure = self.first_argument, self.function_name, self.unsure
        node.body = inner.class_body(node.body)
        return self._decorated(node)

    def _body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for s in statements:
            made += self._save_globals(s)
            new = self.visit(s)
            if isinstance(new, list):
                made.extend(new)
            elif new is not None:
                made.append(new)
        return made

    # -- branches ---------------------------------------------------------------------------------------------------
    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        """Rewrite an ``if`` statement."""
        last = middle_of_chain(node)
        if last is not None:  # what follows stands behind it instead of in it
            name, rest = self._fresh("rest"), last.orelse
            last.orelse = statements_from(f"{name} = True", node)
            behind = statements_from(f"if {name}:\n    REST", last, REST=rest)
            return self._body([*statements_from(f"{name} = False", node), node, *behind])
        name = self._fresh("if")
        test = self._condition(node.test)
        names = self._stored([*node.body, *node.orelse])
        fork = self._needs_fork(node)
        self.context.append(("if", name))
        body, orelse = self._body(node.body), self._body(node.orelse)
        self.context.pop()
        env = f"{name}.env"
        made = statements_from(
            f"{name} = BEGIN\nwhile {name}.next():\n    with {name}:\n        RESTORE\n"
            f"        if {name}.side:\n            BODY\n"
            f"        else:\n            ORELSE\n        if {name}.symbolic:\n            {name}.leave(locals())\nMERGED",
            node,
            BEGIN=operator_call("if_", node.test, test, self._names(names), ast.Constant(fork), locals_call()),
            BODY=body,
            ORELSE=orelse or [ast.Pass()],
            RESTORE=self._restore(f"{name}.restore", env, names, node),
            MERGED=self._restore(f"{name}.merged", env, names, node),
        )
        return made

    def _needs_fork(self, node: ast.If) -> bool:
        """Whether the sides cannot be explored in place.

        So it is where a side yields, or waits while the other yields, or leaves through a ``finally`` that has to run for it alone.
        """
        kinds = jumps([*node.body, *node.orelse])
        if yields([node]) or (kinds and self._yields_elsewhere(kinds)):
            return True
        if "return" in kinds and any(kind == "barrier" for kind, _ in self.context):
            return True
        if kinds & {"break", "continue"}:
            for kind, _ in reversed(self.context):
                if kind == "loop":
                    break
                if kind == "barrier":
                    return True
        return False

    def _yields_elsewhere(self, kinds: set[str]) -> bool:
        """Whether the function yields before it comes to the target of a jump of one of these kinds."""
        loop = next((name for kind, name in reversed(self.context) if kind == "loop"), "")
        return ("return" in kinds and self.yields) or loop in self.yielding

    # -- loops --------------------------------------------------------------------------------------------------------
    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        """Rewrite a ``for`` loop."""
        name = self._fresh("for")
        iterated = self.visit(node.iter)
        temporary = self._fresh("item")
        item = placed(
            ast.Call(ast.Attribute(ast.Name(name, ast.Load()), "item", ast.Load()), [ast.Name(temporary, ast.Load())], []), node.target
        )
        assign = [*self._save_globals(node.target), *self._store(node.target, item, node)]  # in each trip: it may leave to any side
        target = ast.Name(temporary, ast.Store())
        return self._rewritten_loop(
            node,
            name,
            f"{name} = DY.for_(ITER, NAMES, BARRIER, YIELDS)\nfor TARGET in {name}.iterate(locals()):\n    RESTORE\n"
            f"    with {name}:\n        ASSIGN\n        BODY\n        {name}.end(locals())\n    RESTORE2\n"
            f"    if {name}.stop:\n        break\nRESTORE4\nif {name}.completed:\n"
            f"    with {name}.orelse():\n        ORELSE\n{name}.finish(locals())\nRESTORE3",
            ITER=iterated,
            TARGET=target,
            ASSIGN=assign,
        )

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        """Rewrite a ``while`` loop."""
        name = self._fresh("while")
        test = self._condition(node.test)
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        return self._rewritten_loop(
            node,
            name,
            f"{name} = DY.while_(NAMES, BARRIER, YIELDS, ENDLESS)\nwhile {name}.next(locals()):\n    RESTORE\n"
            f"    with {name}:\n        if TEST:\n            BODY\n"
            f"            {name}.end(locals())\n    RESTORE2\n    if {name}.stop:\n        break\n"
            f"if {name}.completed:\n    with {name}.orelse():\n        ORELSE\n{name}.finish(locals())\nRESTORE3",
            ENDLESS=ast.Constant(endless),
            TEST=placed(ast.Call(ast.Attribute(ast.Name(name, ast.Load()), "test", ast.Load()), [test, locals_call()], []), node.test),
        )

    def _rewritten_loop(self, node: ast.For | ast.While, name: str, text: str, **parts: Any) -> list[ast.stmt]:
        """Return what ``text`` says of a loop, with its body, and its variables where one of the words RESTORE stands."""
        names = self._stored([node])
        self.context.append(("loop", name))
        if yields([node]):
            self.yielding.add(name)
        body = self._body(node.body)
        self.context.pop()
        restored = {w: self._restore(f"{name}.restore", f"{name}.env", names, node) for w in text.split() if w.startswith("RESTORE")}
        return statements_from(
            text,
            node,
            DY=operators_name(),
            NAMES=self._names(names),
            BARRIER=self._barrier(),
            YIELDS=ast.Constant(yields([node])),
            BODY=body,
            ORELSE=self._body(node.orelse) or [ast.Pass()],
            **restored,
            **parts,
        )

    def _barrier(self) -> ast.expr:
        """Whether a ``return`` out of the loop at hand leaves through a ``finally`` or ``with``."""
        return ast.Constant(any(kind == "barrier" for kind, _ in self.context))

    def visit_Break(self, node: ast.Break) -> Any:
        """Rewrite ``break``."""
        return statements_from(f"raise {self._loop()}.jump('break', locals())", node)

    def visit_Continue(self, node: ast.Continue) -> Any:
        """Rewrite ``continue``."""
        return statements_from(f"raise {self._loop()}.jump('continue', locals())", node)

    def _loop(self) -> str:
        return next(name for kind, name in reversed(self.context) if kind == "loop")

    def visit_Return(self, node: ast.Return) -> Any:
        """Rewrite ``return``."""
        value: Any = self.visit(node.value) if node.value is not None else ast.Constant(None)
        if self._is_converted_call(value) and not any(kind == "barrier" for kind, _ in self.context):
            value.func.attr = "tail_call"
        if not self.has_frame:
            return ast.copy_location(ast.Return(value), node)
        return statements_from("raise _frame.jump(VALUE)", node, VALUE=value)

    @staticmethod
    def _is_converted_call(value: Any) -> bool:
        return (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and value.func.attr == "call"
            and last_name(value.func.value) == OPERATORS
        )

    # -- barriers -------------------------------------------------------------------------------------------------------
    def visit_With(self, node: ast.With) -> Any:
        """Rewrite a ``with``: its managers are entered and left like any function is called."""
        item, *others = node.items
        expression = item.context_expr
        harmless = isinstance(expression, ast.Call) and last_name(expression.func) in _HARMLESS_CONTEXTS
        manager = self.visit(expression)
        entered = self._fresh("value")
        self.context.append(("if" if harmless else "barrier", ""))
        body = self.visit_With(placed(ast.With(others, node.body), node)) if others else self._body(node.body)
        self.context.pop()
        assign = [] if item.optional_vars is None else self._store(item.optional_vars, ast.Name(entered, ast.Load()), node)
        return statements_from(
            f"with DY.with_(MANAGER, HARMLESS) as {entered}:\n    ASSIGN\n    BODY",
            node,
            DY=operators_name(),
            MANAGER=manager,
            HARMLESS=ast.Constant(harmless),
            ASSIGN=assign or [ast.Pass()],
            BODY=body if harmless else in_block(body),
        )

    def visit_Try(self, node: Any) -> Any:
        """Rewrite the bodies of a ``try``; its handlers must not see the control flow of staging."""
        self.context.append(("barrier", ""))
        starred = not isinstance(node, ast.Try)
        node.body = in_block(self._body(node.body))
        if node.handlers:
            # what `except*` names may be anywhere in a group, and a part of it goes on
            kinds = ast.Constant("" if starred else names_of([h.type for h in node.handlers]))
            passes_on = ast.Constant(not starred and all(map(only_raises, node.handlers)))
            node.body = statements_from(
                "with DY.guard(KINDS, PASSES):\n    BODY", node, DY=operators_name(), KINDS=kinds, PASSES=passes_on, BODY=node.body
            )
        for handler in node.handlers:
            handler.type = handler.type and operator_call("caught", handler.type, self.visit(handler.type))
            handler.body = self._body(handler.body)
        node.orelse = self._body(node.orelse)
        self.context.pop()
        self.context.append(("barrier", ""))
        ends_any, alone = bool(jumps(node.finalbody)), self.repeats and can_stand_alone(node.finalbody)
        node.finalbody = self._body(node.finalbody)
        self.context.pop()
        made = [node]
        if starred:
            made = self._apart_from_groups(node)
        elif node.handlers:
            control = ast.ExceptHandler(operator_named("staging_errors"), None, [ast.Raise()])
            node.handlers.insert(0, ast.copy_location(control, node))
        return self._with_finally(node, made, ends_any, alone) if node.finalbody else made

    def _apart_from_groups(self, node: Any) -> list[ast.stmt]:
        """Keep what steers staging out of ``except*``, which would put it into a group: it goes on behind the statement."""
        name = self._fresh("value")

        def part(body: list[ast.stmt]) -> list[ast.stmt]:
            return statements_from(f"with {name}:\n    if {name}.goes_on:\n        BODY", node, BODY=body)

        node.body = part(node.body)
        for handler in node.handlers:
            handler.body = part(handler.body)
        node.orelse = part(node.orelse) if node.orelse else []
        return statements_from(f"{name} = DY.apart_from_groups()\nTRY\n{name}.go_on()", node, DY=operators_name(), TRY=[node])

    def _with_finally(self, node: Any, made: list[ast.stmt], ends_any: bool, alone: bool) -> list[ast.stmt]:
        """Let a ``finally`` run where the program comes to it, and not where staging leaves a path.

        One that can stand ``alone`` is a function too, for paths that end with an exception.
        """
        name, function = self._fresh("value"), self._fresh("final")
        final, node.finalbody = node.finalbody, []
        as_function = f"def {function}():\n    COPY\n{name} = DY.finally_(JUMPS, {function})" if alone else f"{name} = DY.finally_(JUMPS)"
        return statements_from(
            f"{as_function}\ntry:\n    with {name}:\n        BODY\nfinally:\n    if {name}.runs:\n        FINAL\n"
            f"        {name}.end(locals())",
            node,
            DY=operators_name(),
            JUMPS=ast.Constant(ends_any),
            BODY=in_block(made) if node.handlers else node.body,
            FINAL=final,
            COPY=copy.deepcopy(final),
        )

    visit_TryStar = visit_Try

    def visit_Assert(self, node: ast.Assert) -> Any:
        """Rewrite ``assert`` as a branch that raises."""
        arguments = [node.msg] if node.msg is not None else []
        call = ast.Call(operator_named("AssertionError"), arguments, [])  # whatever that name is for the program
        branch = ast.If(ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test), [ast.Raise(call, None)], [])
        place(branch, node)
        return self.visit(branch)

    def visit_Raise(self, node: ast.Raise) -> Any:
        """Mark the exceptions that the user's program raises itself."""
        if node.exc is None:
            return node
        if node.cause is None:
            node.exc = operator_call("raising", node, self.visit(node.exc))
            return node
        error, cause = self._fresh("value"), self._fresh("value")  # a class is called when both are there
        return statements_from(
            f"{error}, {cause} = ERROR, CAUSE\nraise DY.raising({error}) from DY.cause({cause})",
            node,
            DY=operators_name(),
            ERROR=self.visit(node.exc),
            CAUSE=self.visit(node.cause),
        )

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        """Let a text stand for what is known of it, where a part of it is known only at run time."""
        self.generic_visit(node)
        if not any(isinstance(part, ast.FormattedValue) for part in node.values):
            return node
        return operator_call("joined", node, *map(_text_of, node.values))

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Let ``"%d items" % n`` be such a text too; another operator may make a container."""
        self.generic_visit(node)
        if isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
            return operator_call("percent", node, node.left, node.right)
        return operator_call("computed", node, node) if isinstance(node.op, _MAKING) else node

    def visit_Match(self, node: Any) -> Any:
        """Check the subject of a ``match``; patterns test the value itself, and ask by an operator whether it is True, False or None."""
        depth = max(class_depth(case.pattern) for case in node.cases)
        node.subject = operator_call("match_subject", node.subject, self.visit(node.subject), ast.Constant(depth))
        self.context.append(("barrier", ""))
        for case in node.cases:
            case.pattern = Singletons().visit(case.pattern)
            if case.guard is not None:
                case.guard = self._condition(case.guard)
            case.body = self._body(case.body)
        self.context.pop()
        return node

    # -- expressions ----------------------------------------------------------------------------------------------------
    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Rewrite a call, so that the callee is rewritten too."""
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            return placed(ast.Call(node.func, [ast.Name("__class__", ast.Load()), ast.Name(self.first_argument, ast.Load())], []), node)
        if not is_about_namespaces(node):
            return self._plain_call(node)
        of_namespaces = self._about_namespaces(copy.deepcopy(node))
        name = node.func.id  # type: ignore[attr-defined]
        own = placed(ast.Attribute(ast.Attribute(operators_name(), "builtins", ast.Load()), name, ast.Load()), node)
        is_own = placed(ast.Compare(self.visit(copy.deepcopy(node.func)), [ast.Is()], [own]), node)
        return placed(ast.IfExp(is_own, of_namespaces, self._plain_call(node)), node)  # the program may have a name of its own here

    def _plain_call(self, node: ast.Call) -> ast.expr:
        keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in node.keywords]
        return placed(ast.Call(operator_named("call"), [self.visit(a) for a in (node.func, *node.args)], keywords), node)

    def _new(self, node: Any) -> ast.expr:
        return operator_call("new", node, self.generic_visit(node))  # type: ignore[arg-type]

    def visit_List(self, node: ast.List) -> ast.expr:
        """Note that a list is made here."""
        return self._new(node) if isinstance(node.ctx, ast.Load) else node

    def visit_Starred(self, node: ast.Starred) -> ast.expr:
        """Note what is unpacked into arguments or items."""
        if isinstance(node.ctx, ast.Load):
            return placed(ast.Starred(operator_call("unpacked", node, self.visit(node.value)), ast.Load()), node)
        return self.generic_visit(node)  # type: ignore[return-value]

    visit_Dict = visit_Set = visit_DictComp = visit_SetComp = _new

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Rewrite a load of an item, whose index may be known only at run time."""
        if not isinstance(node.ctx, ast.Load):
            return self.generic_visit(node)  # type: ignore[return-value]
        return operator_call("getitem", node, self.visit(node.value), self._index(node.slice))


def _text_of(part: ast.expr) -> ast.expr:
    """Return the call that makes the text of a part of an f-string."""
    if not isinstance(part, ast.FormattedValue):
        return part
    spec = [] if part.format_spec is None else [part.format_spec]
    conversion = [placed(ast.Constant(part.conversion), part)] if spec or part.conversion != -1 else []
    return operator_call("text_of", part, part.value, *conversion, *spec)


class ClassBodyRewriter(Rewriter):
    """Rewrites the body of a class that a function defines: stores, calls and questions; its tests fork.

    A function in such a body does not see the variables of the class, so nothing of it is moved into one.
    """

    repeats = False

    def class_body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Rewrite the statements; the variables that this adds are taken away at their end."""
        made = self._body(statements)
        added = [n.id for n in walk_scope(made) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and OWN_NAME.fullmatch(n.id)]
        return [*made, *[s for name in dict.fromkeys(added) for s in statements_from(f"locals().pop({name!r}, None)", statements[-1])]]

    def _needs_its_frame(self, nodes: list[ast.expr]) -> bool:
        """Functions within the body of a class do not see its variables."""
        return True

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Keep the annotation: classes are made of them (dataclasses, named tuples)."""
        if not isinstance(node.target, ast.Name):  # it is evaluated after what it stands for, and not kept
            return [*super().visit_AnnAssign(node), placed(ast.Expr(node.annotation), node)]
        stores = super().visit_AnnAssign(node) if node.value is not None else []
        return [*stores, placed(ast.AnnAssign(node.target, node.annotation, None, node.simple), node)]

    def visit_If(self, node: ast.If) -> Any:
        """Leave the branch to Python."""
        node.test = self._condition(node.test)
        node.body, node.orelse = self._body(node.body), self._body(node.orelse)
        return node

    def visit_For(self, node: ast.For) -> Any:
        """Leave the loop to Python."""
        node.iter, node.body, node.orelse = self.visit(node.iter), self._body(node.body), self._body(node.orelse)
        return node

    def visit_While(self, node: ast.While) -> Any:
        """Leave the loop to Python."""
        node.test, node.body, node.orelse = self._condition(node.test), self._body(node.body), self._body(node.orelse)
        return node

    def visit_Break(self, node: ast.Break) -> Any:
        """Leave the jump to Python."""
        return node

    def visit_Continue(self, node: ast.Continue) -> Any:
        """Leave the jump to Python."""
        return node
