// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The version of the library. CMake, the package recipes and the handshake read it from
//! here.

//! Grows when code must change, from 1.0 on.
#define PIPELINING_VERSION_MAJOR 0
//! Grows with what is new; while the version is 0.x, also when code must change.
#define PIPELINING_VERSION_MINOR 3
//! Grows with repairs.
#define PIPELINING_VERSION_PATCH 0
