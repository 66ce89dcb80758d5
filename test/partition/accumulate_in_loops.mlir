// rhino-accumulate-in-loops: the stack that a loop over layers writes becomes the accumulator it is added to.
// RUN: rhino-opt %s --rhino-accumulate-in-loops --split-input-file | filecheck %s
// Once done, there is nothing left to do.
// RUN: rhino-opt %s --rhino-accumulate-in-loops --split-input-file > %t.once
// RUN: rhino-opt %t.once --rhino-accumulate-in-loops --split-input-file | diff %t.once -

// Two stacks: one of floats added on the right, one of integers on the left, layers last to first.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.while(%[[I:.*]] = %{{.*}}, %[[A:.*]] = %{{.*}}, %[[B:.*]] = %{{.*}}) {{.*}}rhino.microbatches
// CHECK: %[[R:.*]]:3 = stablehlo.while(%[[L:.*]] = %{{.*}}, %[[S:.*]] = %[[A]], %[[T:.*]] = %[[B]])
// CHECK: %[[AT:.*]] = stablehlo.subtract
// CHECK: %[[ROW:.*]] = stablehlo.dynamic_slice %[[S]], %[[AT]], %{{.*}}, sizes = [1, 4]
// CHECK-NEXT: %[[SUM:.*]] = stablehlo.add %[[ROW]], %{{.*}} : tensor<1x4xf32>
// CHECK-NEXT: stablehlo.dynamic_update_slice %[[S]], %[[SUM]], %[[AT]]
// CHECK: %[[ROW:.*]] = stablehlo.dynamic_slice %[[T]], %[[AT]], %{{.*}}, sizes = [1, 4]
// CHECK-NEXT: %[[SUM:.*]] = stablehlo.add %[[ROW]], %{{.*}} : tensor<1x4xi32>
// CHECK-NEXT: stablehlo.dynamic_update_slice %[[T]], %[[SUM]], %[[AT]]
// The sums behind the loop are gone: only the counter is added to.
// CHECK-NOT: tensor<3x4x{{.*}}stablehlo.add
// CHECK: %[[J:.*]] = stablehlo.add %[[I]], 
// CHECK-NEXT: stablehlo.return %[[J]], %[[R]]#1, %[[R]]#2
func.func @main(%w: tensor<3x4xf32> {rhino.role = "param"}, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> (tensor<3x4xf32>, tensor<3x4xi32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x4xf32>
  %none = stablehlo.constant dense<0> : tensor<3x4xi32>
  %r:3 = stablehlo.while(%i = %c0, %a = %w, %b = %none) : tensor<i32>, tensor<3x4xf32>, tensor<3x4xi32>
    attributes {rhino.microbatches = {count = 8 : i64}}
  cond {
    %n = stablehlo.constant dense<8> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %row = stablehlo.dynamic_slice %x, %i, %c0, sizes = [1, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %start = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<3x4xf32>
    %q:3 = stablehlo.while(%l = %c0, %s = %start, %t = %none) : tensor<i32>, tensor<3x4xf32>, tensor<3x4xi32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %l, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %at = stablehlo.subtract %two, %l : tensor<i32>
      %p = stablehlo.dynamic_slice %w, %at, %c0, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %g = stablehlo.multiply %p, %row : tensor<1x4xf32>
      %k = stablehlo.convert %g : (tensor<1x4xf32>) -> tensor<1x4xi32>
      %s1 = stablehlo.dynamic_update_slice %s, %g, %at, %c0 : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
      %t1 = stablehlo.dynamic_update_slice %t, %k, %at, %c0 : (tensor<3x4xi32>, tensor<1x4xi32>, tensor<i32>, tensor<i32>) -> tensor<3x4xi32>
      %m = stablehlo.add %l, %c1 : tensor<i32>
      stablehlo.return %m, %s1, %t1 : tensor<i32>, tensor<3x4xf32>, tensor<3x4xi32>
    }
    %a1 = stablehlo.add %q#1, %a : tensor<3x4xf32>
    %b1 = stablehlo.add %b, %q#2 : tensor<3x4xi32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %a1, %b1 : tensor<i32>, tensor<3x4xf32>, tensor<3x4xi32>
  }
  return %r#1, %r#2 : tensor<3x4xf32>, tensor<3x4xi32>
}

// -----

// The stack starts from something else than zeros: that would be lost.
// CHECK-LABEL: func.func @main
// CHECK-NOT: stablehlo.add %{{.*}} : tensor<1x4xf32>
// CHECK: stablehlo.add %{{.*}} : tensor<3x4xf32>
func.func @main(%w: tensor<3x4xf32> {rhino.role = "param"}, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<3x4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x4xf32>
  %ones = stablehlo.constant dense<1.0> : tensor<3x4xf32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<3x4xf32> attributes {rhino.microbatches = {count = 8 : i64}}
  cond {
    %n = stablehlo.constant dense<8> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %row = stablehlo.dynamic_slice %x, %i, %c0, sizes = [1, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %q:2 = stablehlo.while(%l = %c0, %s = %ones) : tensor<i32>, tensor<3x4xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %l, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %p = stablehlo.dynamic_slice %w, %l, %c0, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %g = stablehlo.multiply %p, %row : tensor<1x4xf32>
      %s1 = stablehlo.dynamic_update_slice %s, %g, %l, %c0 : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
      %m = stablehlo.add %l, %c1 : tensor<i32>
      stablehlo.return %m, %s1 : tensor<i32>, tensor<3x4xf32>
    }
    %a1 = stablehlo.add %a, %q#1 : tensor<3x4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %a1 : tensor<i32>, tensor<3x4xf32>
  }
  return %r#1 : tensor<3x4xf32>
}

// -----

// The loop reads the stack, which would be the accumulator.
// CHECK-LABEL: func.func @main
// CHECK-NOT: stablehlo.add %{{.*}} : tensor<1x4xf32>
// CHECK: stablehlo.add %{{.*}} : tensor<3x4xf32>
func.func @main(%w: tensor<3x4xf32> {rhino.role = "param"}, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<3x4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x4xf32>
  %ones = stablehlo.constant dense<1.0> : tensor<3x4xf32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<3x4xf32> attributes {rhino.microbatches = {count = 8 : i64}}
  cond {
    %n = stablehlo.constant dense<8> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %row = stablehlo.dynamic_slice %x, %i, %c0, sizes = [1, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %q:2 = stablehlo.while(%l = %c0, %s = %zeros) : tensor<i32>, tensor<3x4xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %l, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %p = stablehlo.dynamic_slice %w, %l, %c0, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %g = stablehlo.multiply %p, %row : tensor<1x4xf32>
      %old = stablehlo.dynamic_slice %s, %l, %c0, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %more = stablehlo.multiply %g, %old : tensor<1x4xf32>
      %s1 = stablehlo.dynamic_update_slice %s, %more, %l, %c0 : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
      %m = stablehlo.add %l, %c1 : tensor<i32>
      stablehlo.return %m, %s1 : tensor<i32>, tensor<3x4xf32>
    }
    %a1 = stablehlo.add %a, %q#1 : tensor<3x4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %a1 : tensor<i32>, tensor<3x4xf32>
  }
  return %r#1 : tensor<3x4xf32>
}

// -----

// The stack is read elsewhere, too.
// CHECK-LABEL: func.func @main
// CHECK-NOT: stablehlo.add %{{.*}} : tensor<1x4xf32>
// CHECK: stablehlo.add %{{.*}} : tensor<3x4xf32>
func.func @main(%w: tensor<3x4xf32> {rhino.role = "param"}, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<3x4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x4xf32>
  %ones = stablehlo.constant dense<1.0> : tensor<3x4xf32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<3x4xf32> attributes {rhino.microbatches = {count = 8 : i64}}
  cond {
    %n = stablehlo.constant dense<8> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %row = stablehlo.dynamic_slice %x, %i, %c0, sizes = [1, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %q:2 = stablehlo.while(%l = %c0, %s = %zeros) : tensor<i32>, tensor<3x4xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %l, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %p = stablehlo.dynamic_slice %w, %l, %c0, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %g = stablehlo.multiply %p, %row : tensor<1x4xf32>
      %s1 = stablehlo.dynamic_update_slice %s, %g, %l, %c0 : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
      %m = stablehlo.add %l, %c1 : tensor<i32>
      stablehlo.return %m, %s1 : tensor<i32>, tensor<3x4xf32>
    }
    %two = stablehlo.multiply %q#1, %q#1 : tensor<3x4xf32>
    %a0 = stablehlo.add %a, %q#1 : tensor<3x4xf32>
    %a1 = stablehlo.multiply %a0, %two : tensor<3x4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %a1 : tensor<i32>, tensor<3x4xf32>
  }
  return %r#1 : tensor<3x4xf32>
}

// -----

// The stack is added to itself.
// CHECK-LABEL: func.func @main
// CHECK-NOT: stablehlo.add %{{.*}} : tensor<1x4xf32>
// CHECK: stablehlo.add %{{.*}} : tensor<3x4xf32>
func.func @main(%w: tensor<3x4xf32> {rhino.role = "param"}, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<3x4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x4xf32>
  %ones = stablehlo.constant dense<1.0> : tensor<3x4xf32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<3x4xf32> attributes {rhino.microbatches = {count = 8 : i64}}
  cond {
    %n = stablehlo.constant dense<8> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %row = stablehlo.dynamic_slice %x, %i, %c0, sizes = [1, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %q:2 = stablehlo.while(%l = %c0, %s = %zeros) : tensor<i32>, tensor<3x4xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %l, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %p = stablehlo.dynamic_slice %w, %l, %c0, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %g = stablehlo.multiply %p, %row : tensor<1x4xf32>
      %s1 = stablehlo.dynamic_update_slice %s, %g, %l, %c0 : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
      %m = stablehlo.add %l, %c1 : tensor<i32>
      stablehlo.return %m, %s1 : tensor<i32>, tensor<3x4xf32>
    }
    %a0 = stablehlo.add %q#1, %q#1 : tensor<3x4xf32>
    %a1 = stablehlo.maximum %a, %a0 : tensor<3x4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %a1 : tensor<i32>, tensor<3x4xf32>
  }
  return %r#1 : tensor<3x4xf32>
}

// -----

// The accumulator is read elsewhere, too: it would have to be copied.
// CHECK-LABEL: func.func @main
// CHECK-NOT: stablehlo.add %{{.*}} : tensor<1x4xf32>
// CHECK: stablehlo.add %{{.*}} : tensor<3x4xf32>
func.func @main(%w: tensor<3x4xf32> {rhino.role = "param"}, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<3x4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x4xf32>
  %ones = stablehlo.constant dense<1.0> : tensor<3x4xf32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<3x4xf32> attributes {rhino.microbatches = {count = 8 : i64}}
  cond {
    %n = stablehlo.constant dense<8> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %row = stablehlo.dynamic_slice %x, %i, %c0, sizes = [1, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %q:2 = stablehlo.while(%l = %c0, %s = %zeros) : tensor<i32>, tensor<3x4xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %l, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %p = stablehlo.dynamic_slice %w, %l, %c0, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %g = stablehlo.multiply %p, %row : tensor<1x4xf32>
      %s1 = stablehlo.dynamic_update_slice %s, %g, %l, %c0 : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
      %m = stablehlo.add %l, %c1 : tensor<i32>
      stablehlo.return %m, %s1 : tensor<i32>, tensor<3x4xf32>
    }
    %two = stablehlo.multiply %a, %a : tensor<3x4xf32>
    %a0 = stablehlo.add %a, %q#1 : tensor<3x4xf32>
    %a1 = stablehlo.multiply %a0, %two : tensor<3x4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %a1 : tensor<i32>, tensor<3x4xf32>
  }
  return %r#1 : tensor<3x4xf32>
}

// -----

// What the stack is added to is no accumulator.
// CHECK-LABEL: func.func @main
// CHECK-NOT: stablehlo.add %{{.*}} : tensor<1x4xf32>
// CHECK: stablehlo.add %{{.*}} : tensor<3x4xf32>
func.func @main(%w: tensor<3x4xf32> {rhino.role = "param"}, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<3x4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x4xf32>
  %ones = stablehlo.constant dense<1.0> : tensor<3x4xf32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<3x4xf32> attributes {rhino.microbatches = {count = 8 : i64}}
  cond {
    %n = stablehlo.constant dense<8> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %row = stablehlo.dynamic_slice %x, %i, %c0, sizes = [1, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %q:2 = stablehlo.while(%l = %c0, %s = %zeros) : tensor<i32>, tensor<3x4xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %l, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %p = stablehlo.dynamic_slice %w, %l, %c0, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %g = stablehlo.multiply %p, %row : tensor<1x4xf32>
      %s1 = stablehlo.dynamic_update_slice %s, %g, %l, %c0 : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
      %m = stablehlo.add %l, %c1 : tensor<i32>
      stablehlo.return %m, %s1 : tensor<i32>, tensor<3x4xf32>
    }
    %a0 = stablehlo.add %ones, %q#1 : tensor<3x4xf32>
    %a1 = stablehlo.maximum %a, %a0 : tensor<3x4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %a1 : tensor<i32>, tensor<3x4xf32>
  }
  return %r#1 : tensor<3x4xf32>
}

// -----

// All trips write the same row: the last one counts, not their sum.
// CHECK-LABEL: func.func @main
// CHECK-NOT: stablehlo.add %{{.*}} : tensor<1x4xf32>
// CHECK: stablehlo.add %{{.*}} : tensor<3x4xf32>
func.func @main(%w: tensor<3x4xf32> {rhino.role = "param"}, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<3x4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x4xf32>
  %ones = stablehlo.constant dense<1.0> : tensor<3x4xf32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<3x4xf32> attributes {rhino.microbatches = {count = 8 : i64}}
  cond {
    %n = stablehlo.constant dense<8> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %row = stablehlo.dynamic_slice %x, %i, %c0, sizes = [1, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %q:2 = stablehlo.while(%l = %c0, %s = %zeros) : tensor<i32>, tensor<3x4xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %l, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %p = stablehlo.dynamic_slice %w, %l, %c0, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %g = stablehlo.multiply %p, %row : tensor<1x4xf32>
      %s1 = stablehlo.dynamic_update_slice %s, %g, %c1, %c0 : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
      %m = stablehlo.add %l, %c1 : tensor<i32>
      stablehlo.return %m, %s1 : tensor<i32>, tensor<3x4xf32>
    }
    %a1 = stablehlo.add %a, %q#1 : tensor<3x4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %a1 : tensor<i32>, tensor<3x4xf32>
  }
  return %r#1 : tensor<3x4xf32>
}

// -----

// No loop over micro-batches.
// CHECK-LABEL: func.func @main
// CHECK-NOT: stablehlo.add %{{.*}} : tensor<1x4xf32>
// CHECK: stablehlo.add %{{.*}} : tensor<3x4xf32>
func.func @main(%w: tensor<3x4xf32> {rhino.role = "param"}, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<3x4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x4xf32>
  %ones = stablehlo.constant dense<1.0> : tensor<3x4xf32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<3x4xf32>
  cond {
    %n = stablehlo.constant dense<8> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %row = stablehlo.dynamic_slice %x, %i, %c0, sizes = [1, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %q:2 = stablehlo.while(%l = %c0, %s = %zeros) : tensor<i32>, tensor<3x4xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %l, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %p = stablehlo.dynamic_slice %w, %l, %c0, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %g = stablehlo.multiply %p, %row : tensor<1x4xf32>
      %s1 = stablehlo.dynamic_update_slice %s, %g, %l, %c0 : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
      %m = stablehlo.add %l, %c1 : tensor<i32>
      stablehlo.return %m, %s1 : tensor<i32>, tensor<3x4xf32>
    }
    %a1 = stablehlo.add %a, %q#1 : tensor<3x4xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %a1 : tensor<i32>, tensor<3x4xf32>
  }
  return %r#1 : tensor<3x4xf32>
}
