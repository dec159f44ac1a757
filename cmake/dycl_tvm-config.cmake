# Licensed under the Apache License, Version 2.0; see LICENSE.
#
# find_package(dycl_tvm): the target dycl_tvm::host, with which a C++ program loads compiled models.
#
#   find_package(dycl_tvm REQUIRED)      # -Ddycl_tvm_DIR=$(python -c "import dycl_tvm.codegen.toolchain as t; print(t.cmake_dir())")
#   target_link_libraries(my_program PRIVATE dycl_tvm::host)
#
# The host library is compiled in the program's own build, with its compiler and flags, so it also fits cross-compilers. It
# needs dlpack/dlpack.h: see DYCL_FFI_INCLUDE_DIR in dycl_tvm-headers.cmake.
include(${CMAKE_CURRENT_LIST_DIR}/dycl_tvm-headers.cmake)

get_filename_component(_dycl_root "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
if(EXISTS "${_dycl_root}/src/runtime/host/module.cc") # the source tree
  set(_dycl_source "${_dycl_root}/src/runtime")
  set(_dycl_include "${_dycl_root}/src/runtime/include")
else() # an installed package
  set(_dycl_source "${_dycl_root}/src")
  set(_dycl_include "${_dycl_root}/include")
endif()

if(NOT TARGET dycl_tvm::host)
  dycl_find_ffi_headers(_dycl_ffi)
  add_library(dycl_tvm_host STATIC "${_dycl_source}/host/module.cc" "${_dycl_source}/host/trailer.cc"
              "${_dycl_source}/host/files.cc" "${_dycl_source}/json.cc"
                                   "${_dycl_source}/sha256.cc")
  target_compile_features(dycl_tvm_host PUBLIC cxx_std_11)
  target_include_directories(dycl_tvm_host PUBLIC "${_dycl_include}")
  target_include_directories(dycl_tvm_host SYSTEM PUBLIC "${_dycl_ffi}")
  set_target_properties(dycl_tvm_host PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(dycl_tvm_host PUBLIC ${CMAKE_DL_LIBS})
  add_library(dycl_tvm::host ALIAS dycl_tvm_host)
endif()
set(dycl_tvm_INCLUDE_DIRS "${_dycl_include}" "${DYCL_FFI_INCLUDE_DIR}")
set(dycl_tvm_FOUND TRUE)
