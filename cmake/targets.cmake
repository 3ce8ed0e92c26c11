# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# The targets that users link. Each carries include paths, the language level and link dependencies, nothing else.

find_package(Threads REQUIRED)

add_library(pipelining_core INTERFACE)
add_library(pipelining::core ALIAS pipelining_core)
set_target_properties(pipelining_core PROPERTIES EXPORT_NAME core)
target_compile_features(pipelining_core INTERFACE cxx_std_20)
target_link_libraries(pipelining_core INTERFACE Threads::Threads)
set(core_header_paths ${PIPELINING_CORE_HEADERS})
list(TRANSFORM core_header_paths PREPEND "${PROJECT_SOURCE_DIR}/include/pipe/")
target_sources(pipelining_core INTERFACE
  FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/include" FILES ${core_header_paths})

# Everything that this build has, under one name.
add_library(pipelining_pipelining INTERFACE)
add_library(pipelining::pipelining ALIAS pipelining_pipelining)
set_target_properties(pipelining_pipelining PROPERTIES EXPORT_NAME pipelining)
target_link_libraries(pipelining_pipelining INTERFACE pipelining_core)
