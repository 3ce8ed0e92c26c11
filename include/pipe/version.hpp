// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The version of the library. CMake, the package recipes and the handshake read it from
//! here.

#define PIPELINING_VERSION_MAJOR 0
#define PIPELINING_VERSION_MINOR 1
#define PIPELINING_VERSION_PATCH 0
