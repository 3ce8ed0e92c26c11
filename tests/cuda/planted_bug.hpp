// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Which of the bugs that mutants.py has planted is there; 0 is none.

inline int planted_bug = 0;
