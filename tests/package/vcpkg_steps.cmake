# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Runs ports/pipelining/portfile.cmake without vcpkg: its functions do here with plain CMake what vcpkg's do.
#
# usage: cmake -DFEATURES=core[;cuda][;nccl][;mpi] -DWORK=FOLDER -P vcpkg_steps.cmake
# The package ends up in FOLDER/packages, laid out as vcpkg lays out its own.
cmake_minimum_required(VERSION 3.22)
get_filename_component(CURRENT_PORT_DIR "${CMAKE_CURRENT_LIST_DIR}/../../ports/pipelining" ABSOLUTE)
set(CURRENT_PACKAGES_DIR "${WORK}/packages")
set(PORT pipelining)
file(REMOVE_RECURSE "${WORK}")

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGN}")
  endif()
endfunction()

function(vcpkg_check_features)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "OUT_FEATURE_OPTIONS" "FEATURES")
  while(arg_FEATURES)
    list(POP_FRONT arg_FEATURES feature option)
    set(enable OFF)
    if(feature IN_LIST FEATURES)
      set(enable ON)
    endif()
    list(APPEND options "-D${option}=${enable}")
  endwhile()
  set(${arg_OUT_FEATURE_OPTIONS} "${options}" PARENT_SCOPE)
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  run("${CMAKE_COMMAND}" -G Ninja -S "${arg_SOURCE_PATH}" -B "${WORK}/build" -DCMAKE_BUILD_TYPE=Release
    "-DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}" -DBUILD_SHARED_LIBS=OFF ${arg_OPTIONS})
endfunction()

function(vcpkg_cmake_install)
  run("${CMAKE_COMMAND}" --build "${WORK}/build" --target install)
endfunction()

# Packages of vcpkg have their CMake files in share/PACKAGE, one folder less deep than where they were installed.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "PACKAGE_NAME;CONFIG_PATH" "")
  set(folder "${CURRENT_PACKAGES_DIR}/share/${arg_PACKAGE_NAME}")
  file(RENAME "${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}" "${folder}")
  get_filename_component(parent "${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}" DIRECTORY)
  if(parent MATCHES "/cmake$")
    file(REMOVE_RECURSE "${parent}") # vcpkg too removes a parent of that name
  endif()
  file(GLOB files "${folder}/*.cmake")
  foreach(file IN LISTS files)
    file(READ "${file}" text)
    string(REPLACE "\"\${CMAKE_CURRENT_LIST_DIR}/../../../\"" "\"\${CMAKE_CURRENT_LIST_DIR}/../../\"" text "${text}")
    set(one "get_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\n")
    string(REPLACE "${one}${one}${one}" "${one}${one}" text "${text}")
    file(WRITE "${file}" "${text}")
  endforeach()
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  configure_file("${arg_FILE_LIST}" "${CURRENT_PACKAGES_DIR}/share/${PORT}/copyright" COPYONLY)
endfunction()

include("${CURRENT_PORT_DIR}/portfile.cmake")

# What vcpkg checks after a build.
foreach(wanted IN ITEMS share/pipelining/copyright share/pipelining/usage share/pipelining/pipeliningConfig.cmake
                        share/pkgconfig/pipelining.pc include/pipe/pipe.hpp)
  if(NOT EXISTS "${CURRENT_PACKAGES_DIR}/${wanted}")
    message(FATAL_ERROR "the port leaves no ${wanted}")
  endif()
endforeach()
file(GLOB folders RELATIVE "${CURRENT_PACKAGES_DIR}" "${CURRENT_PACKAGES_DIR}/*" "${CURRENT_PACKAGES_DIR}/share/*")
list(REMOVE_ITEM folders include share share/pipelining share/pkgconfig)
if(folders)
  message(FATAL_ERROR "the port leaves what vcpkg does not allow: ${folders}")
endif()
