// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The one definition of doctest and of main for all unit tests.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
