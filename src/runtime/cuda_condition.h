// Licensed under the Apache License, Version 2.0; see LICENSE.
// Device functions that set the condition of a conditional node from an item, and write it down for
// the host. They are text for the driver's own compiler, beside the kernels' images: those are also
// for drivers that do not know cudaGraphSetConditional. PTX ISA 6.0, for all GPUs from sm_50 on.
#ifndef DYCL_RUNTIME_CUDA_CONDITION_H_
#define DYCL_RUNTIME_CUDA_CONDITION_H_

namespace dycl {
namespace cuda {

// By the type of the item: bool, int32, int64.
constexpr const char* kConditionFunctions[] = {"dycl_condition_bool", "dycl_condition_int32",
                                               "dycl_condition_int64"};

// Parameters: the condition's handle; the address of the item; where its value goes, as an int64;
// the number of sides; what the condition is xored with (1 where the first body is of false). An
// index out of range goes to side 0, whose results are at least defined; the host raises later.
#define DYCL_CONDITION(type, load)                                       \
  ".visible .entry dycl_condition_" type                                 \
  "(.param .u64 handle, .param .u64 item, .param .u64 record, "          \
  ".param .u64 sides, .param .u64 flip)\n"                               \
  "{\n"                                                                  \
  ".reg .pred %outside;\n"                                               \
  ".reg .b64 %handle, %item, %record, %sides, %flip, %value, %chosen;\n" \
  ".reg .b32 %word;\n"                                                   \
  "ld.param.u64 %handle, [handle];\n"                                    \
  "ld.param.u64 %item, [item];\n"                                        \
  "ld.param.u64 %record, [record];\n"                                    \
  "ld.param.u64 %sides, [sides];\n"                                      \
  "ld.param.u64 %flip, [flip];\n"                                        \
  "cvta.to.global.u64 %item, %item;\n"                                   \
  "cvta.to.global.u64 %record, %record;\n" load                          \
  "st.global.u64 [%record], %value;\n"                                   \
  "setp.ge.u64 %outside, %value, %sides;\n"                              \
  "selp.b64 %chosen, 0, %value, %outside;\n"                             \
  "xor.b64 %chosen, %chosen, %flip;\n"                                   \
  "cvt.u32.u64 %word, %chosen;\n"                                        \
  "{\n"                                                                  \
  ".param .b64 of;\n"                                                    \
  ".param .b32 to;\n"                                                    \
  "st.param.b64 [of], %handle;\n"                                        \
  "st.param.b32 [to], %word;\n"                                          \
  "call.uni cudaGraphSetConditional, (of, to);\n"                        \
  "}\n"                                                                  \
  "ret;\n"                                                               \
  "}\n"

constexpr const char kConditionPtx[] =
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 "
    "value);\n" DYCL_CONDITION("bool",
                               "ld.global.u8 %value, [%item];\n"
                               "min.u64 %value, %value, 1;\n")
        DYCL_CONDITION("int32", "ld.global.s32 %value, [%item];\n")
            DYCL_CONDITION("int64", "ld.global.s64 %value, [%item];\n");

#undef DYCL_CONDITION

}  // namespace cuda
}  // namespace dycl

#endif  // DYCL_RUNTIME_CUDA_CONDITION_H_
