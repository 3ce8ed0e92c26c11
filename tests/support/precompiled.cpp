// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Nothing: a target needs a source to own precompiled headers.
