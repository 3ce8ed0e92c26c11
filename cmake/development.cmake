# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# What only our own tests, examples and benchmarks get; no consumer ever sees this file.

add_library(pipelining_development INTERFACE)
target_link_libraries(pipelining_development INTERFACE pipelining_core)
target_compile_options(pipelining_development INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wno-sign-conversion -Wshadow -Wold-style-cast)
if(PIPELINING_WARNINGS_AS_ERRORS)
  target_compile_options(pipelining_development INTERFACE -Werror)
endif()

# Most unit tests and lessons take longer to optimise than they run, so the presets say -O0 here. What the optimiser makes
# of the library is tested by those with OPTIMISED and by the larger examples.
set(PIPELINING_UNIT_TEST_OPTIONS "" CACHE STRING "Compiler options of unit tests and lessons that are not to be optimised")
mark_as_advanced(PIPELINING_UNIT_TEST_OPTIONS)

# ASLR with many random bits breaks the sanitizers of older compilers, so their programs run without it where the
# machine allows that.
set(PIPELINING_LAUNCHER ${CMAKE_CROSSCOMPILING_EMULATOR})
if(PIPELINING_SANITIZE)
  target_compile_options(pipelining_development INTERFACE
    -fsanitize=${PIPELINING_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(pipelining_development INTERFACE -fsanitize=${PIPELINING_SANITIZE})
  find_program(PIPELINING_SETARCH setarch)
  mark_as_advanced(PIPELINING_SETARCH)
  if(PIPELINING_SETARCH)
    execute_process(COMMAND "${PIPELINING_SETARCH}" -R true RESULT_VARIABLE setarch_result OUTPUT_QUIET ERROR_QUIET)
    if(setarch_result EQUAL 0)
      set(PIPELINING_LAUNCHER "${PIPELINING_SETARCH}" -R)
    endif()
  endif()
endif()

# Paths are relative to the source tree, so that all clones on one machine share what was compiled. What may be sloppy is
# what ccache asks for before it takes sources with precompiled headers.
if(PIPELINING_CCACHE)
  find_program(PIPELINING_CCACHE_PROGRAM ccache)
  mark_as_advanced(PIPELINING_CCACHE_PROGRAM)
  if(PIPELINING_CCACHE_PROGRAM)
    set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros ${PIPELINING_CCACHE_PROGRAM})
  endif()
endif()

# pipelining_program(NAME source...): the program NAME, built into bin/ of the build folder. Sources name those of other
# folders by their path from the root of the project.
function(pipelining_program name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE pipelining_development)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
endfunction()
