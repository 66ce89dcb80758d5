"""Second order: `hessian` of a small head solved by Newton's method, `jvp` and `jacfwd` regularisers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "hessian (Newton), jvp and jacfwd regularisers",
    stages=Refused("not sync-free", "the Hessian is solved with before examples use the result"),
)  # fmt: skip


def step(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> Any:
    def features(body: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ body)

    def head_loss(head: jax.Array) -> jax.Array:
        p = jax.nn.sigmoid(features(params["body"], x) @ head)
        return -(y * jnp.log(p) + (1 - y) * jnp.log(1 - p)).mean() + 0.01 * (head**2).sum()

    g, h = jax.grad(head_loss)(params["head"]), jax.hessian(head_loss)(params["head"])
    head = params["head"] - jnp.linalg.solve(h, g)

    def body_loss(body: jax.Array) -> jax.Array:
        logits = features(body, x) @ head
        smooth = jax.vmap(jax.jacfwd(lambda r: features(body, r)))(x[:4])
        _, along = jax.jvp(lambda x: features(body, x), (x,), (jnp.ones_like(x),))
        return (jax.nn.softplus(logits) - y * logits).mean() + 0.01 * (smooth**2).sum() + 0.01 * (along**2).mean()

    loss, grad = jax.value_and_grad(body_loss)(params["body"])
    return {"body": params["body"] - 0.1 * grad, "head": head}, loss


def case() -> Case:
    params = {"body": jax.random.normal(jax.random.key(0), (8, 6)) * 0.3, "head": jnp.zeros(6)}
    batches = []
    for i in range(2):
        x = jax.random.normal(jax.random.key(i), (16, 8))
        batches.append((x, (x.sum(-1) > 0) * 1.0))
    return Case(step, (params,), batches, rtol=2e-3)
