"""No C++ pass that --help documents ends the process, whatever small odd module it is given.

Every pass runs on every module in a forked child: it may succeed or raise PipelineError, but not die of a signal.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from jaxlib import version

from rhino.dialect.context import make_context, parse_text
from rhino.ir.diagnostics import PassError
from rhino.passes import guards

PROGRAM = r"""
import json, os, sys
from rhino.dialect.context import make_context, parse_text
from rhino.passes import native
from rhino.passes.pass_manager import PassManager, PipelineError

MESH = 'sdy.mesh @mesh = <["x"=2, "y"=2]> '
ON = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}'
BODY = '{ %0 = stablehlo.add %a, %a : TYPE return %0 : TYPE }'
def function(name, type='tensor<4xf32>', sharding='', body=BODY):
    return f'func.func @{name}(%a: {type} {sharding}) -> {type} ' + body.replace('TYPE', type) + ' '
CALL = '{ %0 = func.call @g(%a) : (tensor<4xf32>) -> tensor<4xf32> return %0 : tensor<4xf32> }'
COMPOSE = 'stablehlo.composite "x.y" %a {decomposition = @g} :'
MODULES = {
    'empty': 'module {}',
    'two functions, no main': function('f') + function('g'),
    'one function, no main': MESH + function('f', sharding=ON),
    'main': MESH + function('main', sharding=ON),
    'main declared only': MESH + f'func.func private @main(tensor<4xf32> {ON}) -> tensor<4xf32>',
    'main and a declaration': MESH
        + 'func.func private @e(tensor<4xf32>) -> tensor<4xf32> ' + function('main', sharding=ON),
    'call': MESH + function('main', sharding=ON, body=CALL) + function('g').replace('@g', 'private @g'),
    'dynamic shape': MESH + function('main', 'tensor<?xf32>', ON),
    'uneven shards': MESH + function('main', 'tensor<15xf32>', ON),
    'a declaration called': MESH
        + 'func.func private @g(tensor<4xf32>) -> tensor<4xf32> ' + function('main', sharding=ON, body=CALL),
    'a declaration composed': MESH + 'func.func private @g(tensor<4xf32>) -> tensor<4xf32> '
        + function('main', sharding=ON, body=CALL.replace('func.call @g(%a) :', COMPOSE)),
    'recursion': MESH + function('main', sharding=ON, body=CALL)
        + function('g', body=CALL).replace('@g(%a: ', 'private @g(%a: ', 1),
    'a mesh inside a sharding': MESH + function('main', sharding=ON.replace('@mesh', 'mesh<["x"=2, "y"=2]>')),
    'a mesh inside a constraint': MESH + function('main', body='{ %0 = sdy.sharding_constraint %a '
        '<mesh<["x"=2]>, [{"x"}]> : TYPE %1 = stablehlo.add %0, %a : TYPE return %1 : TYPE }'),
    'a negative group': MESH + function('main', sharding=ON, body='{ sdy.sharding_group %a group_id = -1 : TYPE '
        '%0 = stablehlo.add %a, %a : TYPE sdy.sharding_group %0 group_id = 2 : TYPE return %0 : TYPE }'),
    'a group beyond memory': MESH + function('main', sharding=ON, body='{ sdy.sharding_group %a group_id = '
        '4611686018427387904 : TYPE %0 = stablehlo.add %a, %a : TYPE return %0 : TYPE }'),
    'more devices than 32 bits count': 'sdy.mesh @mesh = <["x"=65536, "y"=65536]> '
        + function('main', sharding=ON.replace('{"x"}', '{"x", "y"}')),
    'a value in two groups': MESH + function('main', sharding=ON, body='{ sdy.sharding_group %a group_id = 1 : TYPE '
        'sdy.sharding_group %a group_id = 2 : TYPE %0 = stablehlo.add %a, %a : TYPE return %0 : TYPE }'),
    'an edge of an argument': MESH + function('main', sharding=ON,
        body='{ %0 = sdy.data_flow_edge %a : TYPE return %0 : TYPE }'),
    'an edge of a barrier': MESH + function('main', sharding=ON, body='{ %0 = stablehlo.optimization_barrier %a : TYPE '
        '%1 = sdy.data_flow_edge %0 : TYPE return %1 : TYPE }'),
    'an edge of an argument in a loop': MESH + function('main', sharding=ON,
        body='{ %c = stablehlo.constant dense<0> : tensor<i1> %0 = stablehlo.while(%i = %a) : TYPE '
        'cond { stablehlo.return %c : tensor<i1> } do { '
        '%1 = sdy.data_flow_edge %i : TYPE stablehlo.return %1 : TYPE } return %0 : TYPE }'),
    'an edge in a manual computation': MESH + function('main', sharding=ON,
        body='{ %0 = sdy.manual_computation(%a) '
        'in_shardings=[<@mesh, [{}]>] out_shardings=[<@mesh, [{}]>] manual_axes={} (%i: TYPE) { '
        '%1 = sdy.data_flow_edge %i : TYPE sdy.return %1 : TYPE } : (TYPE) -> TYPE return %0 : TYPE }'),
    'one private function': MESH + function('f', sharding=ON).replace('@f', 'private @f'),
    'a private main that nobody calls': MESH + function('main').replace('@main', 'private @main')
        + function('f', body=CALL) + function('g').replace('@g', 'private @g'),
    'a token': MESH + function('main', '!stablehlo.token', '{sdy.sharding = #sdy.sharding<@mesh, []>}',
        '{ %0 = stablehlo.after_all %a : TYPE return %0 : TYPE }'),
    'two meshes': MESH + 'sdy.mesh @n = <["x"=4]> ' + function('main', sharding=ON)
        + function('g', sharding='{sdy.sharding = #sdy.sharding<@n, [{"x"}]>}').replace('@g', 'private @g'),
}
context = make_context()
died, ran = [], 0
for name in (*native.PASSES, 'sdy-add-func-data-flow-edges', 'sdy-flatten-call-graph', 'sdy-import-func-calls'):
    for kind, text in MODULES.items():
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            try:
                PassManager(context, isolate=False).add(name).run(parse_text(text, context))
            except PipelineError:
                pass
            except BaseException:
                os._exit(3)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        ran += 1
        if status:
            died.append([name, kind, status])
print(json.dumps({'ran': ran, 'died': died}))
"""


def test_no_documented_pass_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ran"] > 300
    assert found["died"] == []


@pytest.mark.parametrize(
    ("step", "names"),
    [
        ("cse", ["cse"]),
        ("func.func(sdy-close-shardings{a=b c={d=e}})", ["sdy-close-shardings"]),
        ("any(builtin.module(x.y-z))", ["x.y-z"]),
    ],
)
def test_names_in_a_step(step: str, names: list[str]) -> None:
    assert guards._leaf_names(step) == names


def test_full_reshards_run_once() -> None:
    full = "func.func(sdy-insert-explicit-reshards{enable-full-version=true})"
    part = "func.func(sdy-insert-explicit-reshards)"
    assert guards.check_order(full, [part, "cse"]) is None
    assert guards.check_order(part, [full]) is None
    assert "must run once" in (guards.check_order(full, ["cse", full]) or "")


DECLARED = "func.func private @e(tensor<f32>) -> tensor<f32>\n"


def _calls(name: str, callee: str, kind: str = "") -> str:
    call = f"  %0 = func.call @{callee}(%a) : (tensor<f32>) -> tensor<f32>\n"
    return f"func.func {kind} @{name}(%a: tensor<f32>) -> tensor<f32> {{\n{call}  return %0 : tensor<f32>\n}}\n"


def test_calls_that_jaxlib_cannot_follow() -> None:
    module = parse_text(DECLARED + _calls("main", "e"), make_context())
    for name in ("sdy-propagation-pipeline", "sdy-import-pipeline"):
        with pytest.raises(PassError, match=f"'{name}' cannot run where a function is called that has no body, @e"):
            guards.check(name, module)
    guards.check("sdy-flatten-call-graph", module)
    module = parse_text(_calls("main", "f") + _calls("f", "g") + _calls("g", "f"), make_context())
    for name in ("sdy-propagation-pipeline", "sdy-flatten-call-graph", "sdy-import-func-calls"):
        with pytest.raises(PassError, match="cannot run on functions that call themselves, such as @f") as caught:
            guards.check(name, module)
        assert caught.value.diagnostic.position.line == 10
    guards.check("sdy-import-pipeline", module)


def test_only_what_is_run_is_followed() -> None:
    dead = _calls("f", "g", "private") + _calls("g", "f", "private") + _calls("h", "e", "private")
    text = DECLARED + "func.func @main(%a: tensor<f32>) -> tensor<f32> {\n  return %a : tensor<f32>\n}\n" + dead
    guards.check("sdy-propagation-pipeline", parse_text(text, make_context()))


def test_the_pipeline_drops_an_entry_that_nobody_calls() -> None:
    def body(name: str) -> str:
        return f"func.func {name}(%a: tensor<f32>) -> tensor<f32> {{\n  return %a : tensor<f32>\n}}\n"

    message = "'sdy-propagation-pipeline' drops private functions, and the entry function @"
    for text in (body("private @f"), body("nested @f"), body("private @main") + body("@f") + body("@g")):
        module = parse_text(text, make_context())
        with pytest.raises(PassError, match=message) as caught:
            guards.check("sdy-propagation-pipeline", module)
        assert caught.value.diagnostic.position.line == 1
        guards.check("sdy-basic-propagate", module)
    # What is called is inlined into @f first, which is then the only function.
    for text in (body("private @main") + _calls("f", "main"), body("private @main") + body("@f")):
        guards.check("sdy-propagation-pipeline", parse_text(text, make_context()))
    with pytest.raises(PassError, match=f"{message}main is one"):
        text = body("private @main") + _calls("f", "g") + body("private @g")
        guards.check("sdy-propagation-pipeline", parse_text(text, make_context()))


MANUAL = (
    'sdy.mesh @mesh = <["x"=2]> func.func @f(%a: tensor<4xf32>) {{ sdy.manual_computation(%a) in_shardings='
    "[<@mesh, [{{}}]>] out_shardings=[] manual_axes={{}} (%i: tensor<4xf32>) {{ %0 = sdy.data_flow_edge %i {} : "
    "tensor<4xf32> sdy.return }} : (tensor<4xf32>) -> () return }}"
)


def test_edges_that_the_pipeline_or_the_pass_takes() -> None:
    main = "\nfunc.func @main() { return }"
    sharded = parse_text(MANUAL.format("sharding=<@mesh, [{}]>") + main, make_context())
    guards.check("sdy-basic-propagate", sharded)
    # The pipeline has its own message for all of them.
    guards.check("sdy-propagation-pipeline", parse_text(MANUAL.format("") + main, make_context()))


def test_declarations_are_in_nobodys_way_where_jaxlib_does_not_look_at_them() -> None:
    module = parse_text(DECLARED + _calls("main", "e"), make_context())
    for name in ("basic", "aggressive", "op-priority"):
        guards.check(f"sdy-{name}-propagate", module)
    with pytest.raises(PassError, match="cannot run on a module with a function that has no body, @e"):
        guards.check("sdy-user-priority-propagate", module)


@pytest.mark.parametrize(
    ("step", "text", "message", "remedy"),
    [
        (
            "sdy-basic-propagate",
            'func.func @f(%a: tensor<4xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=2]>, [{"x"}]>}) { return }',
            "needs meshes with a name, and here is one inside a sharding",
            "run sdy-lift-inlined-meshes first",
        ),
        (
            "sdy-user-priority-propagate",
            "func.func @f(%a: tensor<4xf32>) { sdy.sharding_group %a group_id = -1 : tensor<4xf32> return }",
            "takes sharding groups from 0 to 1048576, and this is -1",
            "run sdy-sharding-group-import first, which numbers them",
        ),
        (
            "sdy-propagation-pipeline",
            'sdy.mesh @m = <["x"=65536, "y"=65536]>',
            "takes meshes of 2147483647 devices at most, and this has 4294967296",
            "give the mesh the sizes of real axes",
        ),
        (
            "sdy-propagation-pipeline",
            'func.func @f(%a: tensor<4xf32>) { %0 = sdy.sharding_constraint %a <mesh<["x"=4294967296]>, [{"x"}]> : '
            "tensor<4xf32> return }",
            "takes meshes of 2147483647 devices at most, and this has 4294967296",
            "give the mesh the sizes of real axes",
        ),
        (
            "sdy-aggressive-propagate",
            "func.func @f(%a: tensor<4xf32>) { sdy.sharding_group %a group_id = 1 : tensor<4xf32> "
            "sdy.sharding_group %a group_id = 2 : tensor<4xf32> return }",
            "takes one sharding group of a value, and this is in 1 and 2",
            "run sdy-sharding-group-import first, which numbers them",
        ),
        (
            "sdy-propagation-pipeline",
            "func.func @f(%a: tensor<4xf32>) { %0 = sdy.data_flow_edge %a : tensor<4xf32> return }",
            "takes data flow edges of loops, branches and the like, not of 'func.func'",
            "let sdy-add-data-flow-edges make them",
        ),
        (
            "sdy-user-priority-propagate",
            "func.func @f(%a: tensor<4xf32>, %p: tensor<i1>) { stablehlo.while(%i = %a) : tensor<4xf32> cond { "
            "stablehlo.return %p : tensor<i1> } do { %0 = sdy.data_flow_edge %i : tensor<4xf32> "
            "stablehlo.return %0 : tensor<4xf32> } return }",
            "takes data flow edges of the results of 'stablehlo.while', not of arguments in its regions",
            "let sdy-add-data-flow-edges make them",
        ),
        (
            "sdy-basic-propagate",
            MANUAL.format(""),
            "takes data flow edges of arguments in 'sdy.manual_computation' with a sharding, and this has none",
            "let sdy-add-data-flow-edges make them",
        ),
    ],
)
def test_shardings_that_jaxlib_takes_in_other_passes_only(step: str, text: str, message: str, remedy: str) -> None:
    module = parse_text(text + "\nfunc.func @main() { return }", make_context())
    with pytest.raises(PassError, match=f"'{step}' {message}") as caught:
        guards.check(step, module)
    assert [note.message for note in caught.value.diagnostic.notes] == [remedy]
    guards.check("sdy-lift-inlined-meshes", module)
    guards.check("sdy-sharding-group-import", module)


def test_a_refusal_says_where() -> None:
    module = parse_text("func.func @a() {\n  return\n}\nfunc.func @b() {\n  return\n}\n", make_context())
    with pytest.raises(PassError, match="'sdy-propagation-pipeline' needs a function @main"):
        guards.check("sdy-propagation-pipeline", module)
    guards.check("cse", module)


def test_constraints_are_applied_without_main_where_jaxlib_can() -> None:
    module = parse_text("func.func @a() {\n  return\n}\nfunc.func @b() {\n  return\n}\n", make_context())
    if version.__version_info__ >= (0, 11):
        with pytest.raises(PassError, match="'sdy-apply-sharding-constraints' needs a function @main"):
            guards.check("sdy-apply-sharding-constraints", module)
    else:
        guards.check("sdy-apply-sharding-constraints", module)
