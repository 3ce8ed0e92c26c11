# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Finds NCCL: NCCL_FOUND, NCCL_VERSION and the target NCCL::nccl. Set NCCL_HOME, in CMake or in the environment, to the
# folder above include/nccl.h where it is in no usual place.

find_package(CUDAToolkit QUIET)
# What the user names comes first, and then the library next to the header, if there is one; hints come after the prefix path.
find_path(NCCL_INCLUDE_DIR nccl.h HINTS "${NCCL_HOME}" ENV NCCL_HOME PATH_SUFFIXES include NO_DEFAULT_PATH)
find_path(NCCL_INCLUDE_DIR nccl.h
  HINTS "${CUDAToolkit_LIBRARY_ROOT}" ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
# NAMES_PER_DIR, since packages of Python have libnccl.so.2 alone.
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR
  HINTS "${NCCL_INCLUDE_DIR}/.." PATH_SUFFIXES lib lib64 "lib/${CMAKE_LIBRARY_ARCHITECTURE}" NO_DEFAULT_PATH)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR
  HINTS "${NCCL_HOME}" ENV NCCL_HOME "${CUDAToolkit_LIBRARY_ROOT}" "${CUDAToolkit_LIBRARY_DIR}" PATH_SUFFIXES lib lib64)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

if(NCCL_INCLUDE_DIR)
  file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" nccl_lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) [0-9]+$")
  string(REGEX REPLACE "[^0-9;]" "" nccl_numbers "${nccl_lines}")
  list(JOIN nccl_numbers "." NCCL_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)

if(NCCL_FOUND AND NOT TARGET NCCL::nccl)
  add_library(NCCL::nccl UNKNOWN IMPORTED)
  set_target_properties(NCCL::nccl PROPERTIES
    IMPORTED_LOCATION "${NCCL_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}")
endif()
