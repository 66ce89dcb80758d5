// What follows from constants alone is made where it is read.
// RUN: rhino-opt %s --split-input-file --rhino-sink-constants --canonicalize --mlir-pass-statistics 2>%t.statistics | filecheck %s
// RUN: filecheck %s --check-prefix=COUNT < %t.statistics

// COUNT: 2 carried
// COUNT: 2 carried
// COUNT-NEXT: 1 barred
// COUNT: 1 carried
// COUNT-NEXT: 1 barred
// COUNT: 0 carried

// jax took the causal mask and the array of -inf out of the scan; both are made in it again, and the loop carries two
// tensors less. The bias comes from an argument, and stays.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>
// CHECK: stablehlo.while(%{{.*}} = %{{.*}}, %{{.*}} = %[[X]]
// CHECK: do {
// CHECK-DAG: %[[MASK:.*]] = stablehlo.compare GE
// CHECK-DAG: %[[LEAST:.*]] = stablehlo.{{broadcast_in_dim|constant}} {{.*}}tensor<4x4xf32>
// CHECK: stablehlo.select %[[MASK]], %{{.*}}, %[[LEAST]]
func.func @main(%x: tensor<4x4xf32>, %bias: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %rows = stablehlo.iota dim = 0 : tensor<4x4xi32>
  %columns = stablehlo.iota dim = 1 : tensor<4x4xi32>
  %mask = stablehlo.compare GE, %rows, %columns, SIGNED : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi1>
  %inf = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %least = stablehlo.broadcast_in_dim %inf, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:5 = stablehlo.while(%i = %zero, %h = %x, %m = %mask, %l = %least, %b = %bias) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xi1>, tensor<4x4xf32>, tensor<4x4xf32>
  cond {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %0 = stablehlo.compare LT, %i, %three, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %0 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %0 = stablehlo.add %h, %b : tensor<4x4xf32>
    %1 = stablehlo.select %m, %0, %l : tensor<4x4xi1>, tensor<4x4xf32>
    %2 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %2, %1, %m, %l, %b : tensor<i32>, tensor<4x4xf32>, tensor<4x4xi1>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  return %r#1 : tensor<4x4xf32>
}

// -----

// In a loop over layers inside a loop over micro-batches, behind a barrier: in the inner one. Behind the loops it is
// what it was before.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.while
// CHECK: do {
// CHECK: stablehlo.while
// CHECK: do {
// CHECK: %[[H:.*]] = stablehlo.optimization_barrier %{{[^,]*}} : tensor<4xf32>
// CHECK: stablehlo.multiply %[[H]], %{{.*}} : tensor<4xf32>
// CHECK: stablehlo.negate
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %count = stablehlo.iota dim = 0 : tensor<4xf32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:3 = stablehlo.while(%i = %zero, %h = %x, %c = %count) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  cond {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %0 = stablehlo.compare LT, %i, %three, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %0 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %0:3 = stablehlo.while(%j = %one, %g = %h, %d = %c) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
    cond {
      %three = stablehlo.constant dense<3> : tensor<i32>
      %1 = stablehlo.compare LT, %j, %three, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %next = stablehlo.constant dense<1> : tensor<i32>
      %1:2 = stablehlo.optimization_barrier %g, %d : tensor<4xf32>, tensor<4xf32>
      %2 = stablehlo.multiply %1#0, %1#1 : tensor<4xf32>
      %3 = stablehlo.add %j, %next : tensor<i32>
      stablehlo.return %3, %2, %d : tensor<i32>, tensor<4xf32>, tensor<4xf32>
    }
    %4 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %4, %0#1, %c : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  %last = stablehlo.negate %r#2 : tensor<4xf32>
  return %r#1, %last : tensor<4xf32>, tensor<4xf32>
}

// -----

// Complex numbers, whose constants the bindings cannot read.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.while(%{{[^,]*}} = %{{[^,]*}}, %[[H:[^ ]*]] = %{{[^,)]*}}) : tensor<i32>, tensor<4xcomplex<f32>>
// CHECK: do {
// CHECK: %[[G:.*]] = stablehlo.optimization_barrier %[[H]] : tensor<4xcomplex<f32>>
// CHECK: stablehlo.multiply %[[G]], %{{.*}} : tensor<4xcomplex<f32>>
func.func @main(%x: tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>> {
  %c = stablehlo.constant dense<(1.000000e+00,2.000000e+00)> : tensor<complex<f32>>
  %half = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<complex<f32>>) -> tensor<4xcomplex<f32>>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:3 = stablehlo.while(%i = %zero, %h = %x, %b = %half) : tensor<i32>, tensor<4xcomplex<f32>>, tensor<4xcomplex<f32>>
  cond {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %0 = stablehlo.compare LT, %i, %three, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %0 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %0:2 = stablehlo.optimization_barrier %h, %b : tensor<4xcomplex<f32>>, tensor<4xcomplex<f32>>
    %1 = stablehlo.multiply %0#0, %0#1 : tensor<4xcomplex<f32>>
    %2 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %2, %1, %b : tensor<i32>, tensor<4xcomplex<f32>>, tensor<4xcomplex<f32>>
  }
  return %r#1 : tensor<4xcomplex<f32>>
}

// -----

// What a product reads is in memory anyway, sines cost more than reading them, and what the loop changes is its own:
// all three stay.
// CHECK-LABEL: func.func @main
// CHECK: %[[T:.*]] = stablehlo.iota dim = 0 : tensor<4x4xf32>
// CHECK: %[[S:.*]] = stablehlo.sine %[[T]]
// CHECK: stablehlo.while
// CHECK-NOT: stablehlo.iota
// CHECK-NOT: stablehlo.sine
// CHECK: return
func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %t = stablehlo.iota dim = 0 : tensor<4x4xf32>
  %s = stablehlo.sine %t : tensor<4x4xf32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:5 = stablehlo.while(%i = %zero, %h = %x, %u = %t, %v = %s, %sum = %t) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
  cond {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %0 = stablehlo.compare LT, %i, %three, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %0 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %0 = stablehlo.dot_general %h, %u, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.multiply %0, %v : tensor<4x4xf32>
    %2 = stablehlo.add %sum, %1 : tensor<4x4xf32>
    %3 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %3, %2, %u, %v, %2 : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  return %r#1 : tensor<4x4xf32>
}
