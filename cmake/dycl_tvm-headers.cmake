# Licensed under the Apache License, Version 2.0; see LICENSE.
#
# dycl_find_ffi_headers(<variable> [OPTIONAL]): where dlpack/dlpack.h and tvm/ffi/c_api.h are. DYCL_FFI_INCLUDE_DIR says it;
# otherwise Python's tvm_ffi is asked (Python_EXECUTABLE, or the first python3). Only headers are used, no library.
function(dycl_find_ffi_headers variable)
  if(NOT DYCL_FFI_INCLUDE_DIR)
    if(NOT Python_EXECUTABLE)
      find_program(Python_EXECUTABLE NAMES python3 python)
    endif()
    if(Python_EXECUTABLE)
      execute_process(
        COMMAND ${Python_EXECUTABLE} -c "import tvm_ffi.libinfo as l; print(l.find_include_path())"
        OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    endif()
    if(NOT EXISTS "${found}/dlpack/dlpack.h")
      find_path(found_dlpack dlpack/dlpack.h)
      set(found "${found_dlpack}")
    endif()
    set(DYCL_FFI_INCLUDE_DIR "${found}" CACHE PATH "Directory with dlpack/dlpack.h and tvm/ffi/c_api.h" FORCE)
  endif()
  if(NOT EXISTS "${DYCL_FFI_INCLUDE_DIR}/dlpack/dlpack.h")
    if("OPTIONAL" IN_LIST ARGN)
      set(${variable} "" PARENT_SCOPE)
      return()
    endif()
    message(FATAL_ERROR "dlpack/dlpack.h was not found: install apache-tvm-ffi for ${Python_EXECUTABLE}, "
                        "set Python_EXECUTABLE, or set DYCL_FFI_INCLUDE_DIR")
  endif()
  set(${variable} "${DYCL_FFI_INCLUDE_DIR}" PARENT_SCOPE)
endfunction()
