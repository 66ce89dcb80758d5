// A name in the rhino dialect that does not exist is an error wherever it stands, with the closest one as a remedy.
// RUN: rhino-opt %s --rhino-verify --verify-diagnostics --split-input-file

// expected-error @+2 {{unknown attribute 'rhino.plam' in the rhino dialect}}
// expected-note @+1 {{did you mean 'rhino.plan'?}}
module attributes {rhino.plam = {}} {
}

// -----

// expected-error @+2 {{unknown attribute 'rhino.zzz' in the rhino dialect (argument 0)}}
// expected-note @+1 {{known attributes are rhino.role, rhino.name}}
func.func @main(%a: tensor<4xf32> {rhino.zzz}) {
  // Attributes of other tools are none of our business.
  %0 = stablehlo.negate %a {acme.note = "kept", rhinoceros.horn = 1 : i64} : tensor<4xf32>
  return
}

// -----

// expected-error @+2 {{unknown attribute 'rhino.cluste' in the rhino dialect}}
// expected-note @+1 {{did you mean 'rhino.cluster'?}}
sdy.mesh @mesh = <["x"=2]> {rhino.cluste = 1 : i64}
