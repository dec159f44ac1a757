/* Licensed under the Apache License, Version 2.0; see LICENSE. */
/**
 * \file dycl/dycl.h
 * \brief The C API that every compiled model (model.so) exports.
 *
 * A model holds the weights, read-only and shared. A session is one execution state (arena,
 * argument arrays, state variables); sessions are independent, and one session must be used by one
 * thread at a time. Functions that can fail return a DyclStatus; the text of the error is kept per
 * thread. A failed call leaves the session usable.
 *
 * Structures that may grow begin with `struct_size`, which the caller sets to sizeof(the
 * structure).
 */
#ifndef DYCL_DYCL_H_
#define DYCL_DYCL_H_

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Version of this interface; a host and a model with different versions do not fit together. */
#define DYCL_ABI_VERSION 1

#if defined(__GNUC__)
#define DYCL_API __attribute__((visibility("default")))
#else
#define DYCL_API
#endif

typedef struct DyclModel DyclModel;
typedef struct DyclSession DyclSession;

/** What a function returns. */
enum DyclStatus {
  DYCL_OK = 0,
  /** The inputs of a call are wrong; the message names the input and what was expected. */
  DYCL_ERROR_INPUT = 1,
  /** The params file is missing, damaged, or does not belong to this model. */
  DYCL_ERROR_ARTIFACT = 2,
  /** The network ended in a run-time error; dycl_last_error_kind() is the exception type. */
  DYCL_ERROR_RUN = 3,
  /** Not enough memory. */
  DYCL_ERROR_MEMORY = 4,
  /** A function was used wrongly, such as an output asked for before any run. */
  DYCL_ERROR_USAGE = 5,
  /** The GPU or its driver: missing, too old, of another architecture, or failed in the run. */
  DYCL_ERROR_DEVICE = 6,
  /** dycl_cancel() ended the run, or the signal of DyclRunOptions did. */
  DYCL_ERROR_CANCELLED = 7,
  /** The run had not ended at its deadline. */
  DYCL_ERROR_DEADLINE = 8
};

/** The type of a value that goes in or comes out. */
enum DyclType { DYCL_TENSOR = 0, DYCL_INT = 1, DYCL_FLOAT = 2, DYCL_BOOL = 3 };

/** An input or an output. `type` (a DyclType) says which member holds. */
typedef struct {
  int32_t type;
  int32_t reserved;
  union {
    const DLTensor* tensor;
    int64_t v_int;
    double v_float;
    int64_t v_bool;
  } u;
} DyclValue;

/** One decision of a path: which branch or switch (an index into "decisions" of the metadata), and
 * the way taken: for a branch 1 is the `if` side and 0 the `else` side, for a switch the case. */
typedef struct {
  uint32_t decision;
  uint32_t choice;
} DyclPathEntry;

/** Sizes of a model. Set struct_size before the call. */
typedef struct {
  size_t struct_size;
  uint64_t arena_bytes;
  uint64_t weight_bytes;
  uint64_t session_bytes;
  uint32_t num_inputs;
  uint32_t num_sites;
  uint32_t num_decisions;
  uint32_t num_kernels;
  uint32_t num_calls;
  uint32_t num_state;
} DyclModelInfo;

/** Where the bytes of a params file are. */
enum DyclParamsFrom {
  DYCL_PARAMS_FROM_PATH = 0,
  DYCL_PARAMS_FROM_MEMORY = 1,
  DYCL_PARAMS_FROM_DESCRIPTOR = 2
};

/** Who keeps the bytes of a params file while the model lives. */
enum DyclParamsCopy {
  /** The file is mapped, so that processes share it: who replaces it must write a new file and
   * rename it. Memory of the caller is used where it is: it must stay as it is until the model and
   * its sessions are destroyed, and begin at a multiple of 64 bytes; so must an offset in a file.
   */
  DYCL_PARAMS_MAP = 0,
  /** They are copied into memory of the process. */
  DYCL_PARAMS_COPY = 1,
  /** They are copied into memory that nobody can write to or shorten any more (Linux: a memfd with
   * all seals), which other processes can have too: dycl_params_fd(). */
  DYCL_PARAMS_SEAL = 2
};

/** How to open a model. Set struct_size before the call; what is 0 is as in dycl_model_create(). */
typedef struct {
  size_t struct_size;
  /** A DyclParamsCopy; any other number is as DYCL_PARAMS_COPY. What was copied may be written over
   * or removed afterwards. */
  int32_t copy_params;
  int32_t reserved;
  /** A DyclParamsFrom. If it is not 0, `params_path` is NULL, and the members below hold. */
  int32_t params_from;
  /** A file, such as a memfd or an archive that has the params file inside, uncompressed. It stays
   * the caller's, who may close it after the call; its position is not used. */
  int32_t params_fd;
  /** Where in that file the params begin. */
  uint64_t params_offset;
  /** How many bytes they have; of a file 0 means up to its end. */
  uint64_t params_size;
  const void* params_data;
} DyclModelOptions;

/** The largest value of one of "sizes" of the metadata. */
typedef struct {
  const char* name;
  int64_t most;
} DyclLargestSize;

/** How to make a session. Set struct_size before the call; what is 0 is as in
 * dycl_session_create(). */
typedef struct {
  size_t struct_size;
  /** Memory of the caller for what a run computes: as many bytes as arena_bytes of
   * dycl_session_needs() or more, beginning at a multiple of 64 bytes. It must live as long as the
   * session. Nobody else may write to it from the beginning of a run until its outputs have been
   * read; between that and the next run it may be used for anything, also as the arena of another
   * session. State variables and copies of inputs lie elsewhere. A model for a GPU takes none. */
  void* arena;
  uint64_t arena_bytes;
  /** Sizes of which no call of the session has a larger one: `num_largest_sizes` of them, read
   * during the call; the others may be as large as those of the library. A call with a larger one
   * is a DYCL_ERROR_INPUT before anything runs. The session takes the memory that the paths need
   * which such calls may take. A library without dycl_session_needs() passes over them. */
  const DyclLargestSize* largest_sizes;
  size_t num_largest_sizes;
} DyclSessionOptions;

/** How to run. Set struct_size before the call; what is 0 is as in dycl_run(). */
typedef struct {
  size_t struct_size;
  /** Not 0: milliseconds from the call on, after which the run ends before its next kernel with
   * DYCL_ERROR_DEADLINE. At once if it is less than 0. */
  double deadline_ms;
  /** Not 0: the number of a signal, such as SIGINT, that cancels this run. The handler that the
   * program has for it is called too and is there again after the run. Has no effect while another
   * run of this library waits for a signal, or where the signal is ignored. */
  int32_t cancel_on_signal;
  int32_t reserved;
  /** Not 0: milliseconds from the call on in which the run should end. At a decision one of whose
   * sides leaves the network ("leaves" in the metadata) that side is taken, whatever its condition
   * says, if going on takes longer than what remains: see dycl_path_cut(). At the first such
   * decision if it is less than 0. For models that run on the CPU. */
  double budget_ms;
  /** With a budget: how many nanoseconds going on takes at each decision, as a profile tells; those
   * of decisions at which no side leaves do not matter. They are read until the run has ended. */
  const uint64_t* needed_ns;
  /** How many these are: "decisions" of the metadata. */
  size_t num_needed;
  /** Not NULL: a number that cancels the run if it is not 0 when the run begins. Who sets it and
   * calls dycl_cancel() then cancels a run for sure that another thread is about to begin. It is
   * read once, atomically. */
  const int32_t* cancelled;
} DyclRunOptions;

/** How the threads of parallel kernels run. Set struct_size before the call; what is 0 is as the
 * system has it. */
typedef struct {
  size_t struct_size;
  /** The numbers of the CPUs that they may use. There are as many threads then as CPUs, unless
   * DYCL_NUM_THREADS says another number or there are threads already. */
  const int32_t* cpus;
  size_t num_cpus;
  /** Their nice value, from -20 to 19; below that of the process it takes a privilege. */
  int32_t nice;
  int32_t reserved;
} DyclThreadOptions;

/** The bounds of a dimension of an input: a call may give least, least + step, ..., most, one and
 * the same for all dimensions of one size. For a dimension that is fixed least and most are equal.
 */
typedef struct {
  int64_t least;
  int64_t most;
  int64_t step;
  /** Which size of the caller's decides it (an index into "sizes" of the metadata); -1: it is
   * fixed. */
  int32_t size;
  int32_t reserved;
} DyclExtent;

/** What an event of a profile tells. */
enum DyclEventKind {
  /** A run begins: begin_ns is when it was called, end_ns when its inputs were bound. `index`: it
   * is in a group of so many runs, of which one is timed inside and stands for them. `choice` is 1
   * where the run is not timed inside (DyclProfileOptions.every): it has no DYCL_EVENT_CALL then,
   * and its decisions have the time of its end. If it took more than 4096 decisions there is no
   * such event, and none of decisions. */
  DYCL_EVENT_START = 0,
  /** A kernel ran; `index` is the call, an index into "calls" of the metadata. Calls that follow
   * each other share the moment between them. */
  DYCL_EVENT_CALL = 1,
  /** A decision was taken; `index` and `choice` are those of DyclPathEntry. */
  DYCL_EVENT_DECISION = 2,
  /** A run has ended; begin_ns is when it was called, `index` is the return site, UINT32_MAX where
   * it failed. */
  DYCL_EVENT_RUN = 3
};

/** An event of a profile. Times are nanoseconds of CLOCK_MONOTONIC. */
typedef struct {
  uint64_t begin_ns;
  uint64_t end_ns;
  /** A DyclEventKind. */
  uint32_t kind;
  uint32_t index;
  uint32_t choice;
  uint32_t reserved;
} DyclEvent;

/** Where the events of a profile go. Set struct_size before the call. */
typedef struct {
  size_t struct_size;
  /** A ring of `capacity` slots, each of an event or of several decisions. It belongs to the
   * session until dycl_profile_stop() or its end; only dycl_profile_read() understands it. */
  DyclEvent* events;
  size_t capacity;
  /** In how many runs one is chosen, by chance, whose kernels and decisions are timed; 1: all are.
   * 0: so many that the profile is estimated to take at most 2.5 % of the time of runs, and at
   * least one in 128; how many is chosen anew for each group of runs. The others are told without
   * their kernels, and cost three looks at the clock more than without a profile. The first run is
   * timed. */
  uint32_t every;
  uint32_t reserved;
} DyclProfileOptions;

/** Returns DYCL_ABI_VERSION of the model. */
DYCL_API int32_t dycl_abi_version(void);

/** Returns the metadata: a JSON text that lives as long as the library. */
DYCL_API const char* dycl_metadata(void);

/** Returns what build(user_metadata=...) was given under a key, a text that lives as long as the
 * library; NULL for another key. */
DYCL_API const char* dycl_user_metadata(const char* key);

/** Opens the weights. `params_path` may be NULL when they are embedded in the library. */
DYCL_API int32_t dycl_model_create(const char* params_path, DyclModel** out);

/** dycl_model_create() with options, which may be NULL. */
DYCL_API int32_t dycl_model_create_with(const char* params_path, const DyclModelOptions* options,
                                        DyclModel** out);

/** The file descriptor of a model that was opened with DYCL_PARAMS_SEAL, -1 for others. It is the
 * model's; a process that gets it (by inheritance, or through a socket) opens the model with
 * DYCL_PARAMS_FROM_DESCRIPTOR and shares the memory. */
DYCL_API int32_t dycl_params_fd(const DyclModel* model);

/** Releases the model; it goes when its last session has gone. NULL is allowed. */
DYCL_API void dycl_model_destroy(DyclModel* model);

/** Releases a model (NULL is allowed), and ends all that the library has going on: its threads, the
 * memory that threads keep for kernels, the function of dycl_set_log(). A library holds itself in
 * memory from its first model on; after this dlclose() takes it out, once for each dlopen(). Other
 * libraries of the process that have used its threads go on with their own.
 *
 * DYCL_ERROR_USAGE, and nothing is done, while there is any session, another model, or a tensor
 * that a packed function gave. No other thread may be in a function of the library. It can be used
 * again as long as it is open. A model that is a part of the program stays. */
DYCL_API int32_t dycl_unload(DyclModel* model);

/** Says how the threads run that the libraries of the process share, from now on, and those of
 * sessions that are made from now on; not the threads of the caller. NULL: as DYCL_AFFINITY (such
 * as 0-3,8) and DYCL_NICE say. Where the system refuses a priority it is a text of
 * DYCL_LOG_WARNING. */
DYCL_API int32_t dycl_set_thread_options(const DyclThreadOptions* options);

/** Runs the k-th task of a kernel on the thread that calls. */
typedef void (*DyclTask)(void* data, int32_t k);

/** A parallel loop of the program's: calls task(data, k) once for each k from 0 to n - 1, in any
 * order and in any threads, also at the same time or all in one, and returns 0 when all of them
 * have returned. Another number ends the run of the session in an error. It may have been called by
 * several threads at once, one for each session that runs. No exception may leave it. */
typedef int32_t (*DyclParallelFor)(void* user, DyclTask task, void* data, int32_t n);

/** Has all libraries of the process run their parallel kernels by a function of the program, in
 * place of the threads that they share; these are not made then. `num_threads`, from 1 to 256, is
 * how many parts a kernel is cut into. With NULL they use their own threads again, and so they do
 * in a child of fork(). Sessions that were given a number of threads go on with it.
 *
 * When this returns, the function that was there before is not called any more; the runs go on.
 * DYCL_ERROR_USAGE where a task or the function itself calls this. No other thread may make the
 * first model of a library meanwhile.
 *
 * Where the function has returned, and tasks were not run, or were still running, or were run
 * twice, or there are no such, the run ends in an error. A task that is begun after that uses
 * memory that is gone. */
DYCL_API int32_t dycl_set_parallel(DyclParallelFor function, void* user, int32_t num_threads);

/** Tells the sizes of a model. */
DYCL_API int32_t dycl_model_info(const DyclModel* model, DyclModelInfo* info);

/** Tells how large the dimensions of an input may be. `*ndim` is their number, 0 for numbers; the
 * first `capacity` of them are given. */
DYCL_API int32_t dycl_input_bounds(size_t input, DyclExtent* extents, size_t capacity,
                                   size_t* ndim);

/** Tells what dycl_model_info() tells, for a session that is made with these options, which may be
 * NULL; their arena is not looked at. */
DYCL_API int32_t dycl_session_needs(const DyclModel* model, const DyclSessionOptions* options,
                                    DyclModelInfo* info);

/** dycl_input_bounds() of a session, which may have been made for smaller sizes. */
DYCL_API int32_t dycl_session_input_bounds(const DyclSession* session, size_t input,
                                           DyclExtent* extents, size_t capacity, size_t* ndim);

/** Makes a session: the only place that allocates memory for runs. */
DYCL_API int32_t dycl_session_create(DyclModel* model, DyclSession** out);

/** dycl_session_create() with options, which may be NULL. */
DYCL_API int32_t dycl_session_create_with(DyclModel* model, const DyclSessionOptions* options,
                                          DyclSession** out);

/** Releases a session. NULL is allowed. */
DYCL_API void dycl_session_destroy(DyclSession* session);

/** Gives a session `num_threads` threads of its own (1: none beside the caller). 0 goes back to the
 * threads that the process shares: DYCL_NUM_THREADS in the environment, or one for each core. */
DYCL_API int32_t dycl_session_set_num_threads(DyclSession* session, int32_t num_threads);

/** How important the runs of a session are beside those of others. */
enum DyclPriority { DYCL_PRIORITY_LOW = -1, DYCL_PRIORITY_NORMAL = 0, DYCL_PRIORITY_HIGH = 1 };

/** Gives a session a DyclPriority, at first DYCL_PRIORITY_NORMAL. While a run of a higher one goes
 * on in the process, of whichever library, kernels of the others run on the thread that calls them
 * alone, from their next one on: so the important run finds the shared threads free. Nobody waits,
 * and the threads that call are the program's, with the system's priorities that it gives them.
 * Libraries that were built before this was possible know of no priorities. */
DYCL_API int32_t dycl_session_set_priority(DyclSession* session, int32_t priority);

/** Says whether a session of a model for a GPU may let the GPU take branches by itself (0: the host
 * takes all). It may from the beginning; it does where the driver is of CUDA 12.8 or newer. */
DYCL_API int32_t dycl_session_set_device_branches(DyclSession* session, int32_t on);

/** Has runs of a session of a model for a GPU put their work on a CUDA stream of the caller's: a
 * cudaStream_t or CUstream of that GPU, NULL for the default stream. With 0 for `on` they go to the
 * session's own stream, as at first. The stream must live until another is set or the session is
 * destroyed.
 *
 * A run on it waits for the GPU only where the host needs a value (a branch, a size, a number that
 * is returned), not at its end. Its outputs are on the GPU, wherever the inputs are, and
 * dycl_output() gives views that hold in the order of the stream; so do tensors that
 * dycl_run_into() and dycl_copy_output() write to on the GPU, while a copy to CPU memory is waited
 * for. Inputs must stay as they are until the stream has come behind the run, those in pageable CPU
 * memory until the call returns. What fails on the GPU after the last wait is told by a later call
 * that waits. */
DYCL_API int32_t dycl_session_set_cuda_stream(DyclSession* session, int32_t on, void* stream);

/** Runs the network. On success `*site` is the return site, an index into "sites" of the metadata.
 * Tensors that are contiguous and 64-byte aligned are read in place, others are copied first.
 *
 * A model for a GPU takes tensors in CPU memory, which it copies to the GPU, and tensors on the GPU
 * (kDLCUDA), which it reads in place. Its outputs are on the GPU if one of its inputs is, otherwise
 * in CPU memory. It waits for the GPU before it returns, but for runs on a stream of the caller's:
 * dycl_session_set_cuda_stream(). */
DYCL_API int32_t dycl_run(DyclSession* session, const DyclValue* inputs, size_t num_inputs,
                          int32_t* site);

/** dycl_run() for networks whose inputs are all tensors. */
DYCL_API int32_t dycl_run_tensors(DyclSession* session, const DLTensor* const* inputs,
                                  size_t num_inputs, int32_t* site);

/** dycl_run() with options, which may be NULL. */
DYCL_API int32_t dycl_run_with(DyclSession* session, const DyclValue* inputs, size_t num_inputs,
                               const DyclRunOptions* options, int32_t* site);

/** dycl_run_with() that puts results into tensors of the caller: the k-th leaf into `outputs[k]`. A
 * leaf without one (NULL, or behind `num_outputs`) stays in the session, and so does a number.
 *
 * A tensor must be contiguous, of the type and the largest shape that the leaf has, the same on all
 * paths on which it is a tensor; a leaf whose size a run decides is its first elements then, and
 * dycl_output() tells the shape. It must not overlap another one, memory of the session or weights.
 * It may overlap inputs: those are copied before the run.
 *
 * Where the plan of the memory allows it the kernel that makes the result writes there (CPU, data
 * at a multiple of 64 bytes); it is copied there after the run where not, as with results that are
 * inputs, weights or state variables, or the same tensor twice. After a run that failed the tensors
 * hold anything. Views that dycl_output() gives may be of them. */
DYCL_API int32_t dycl_run_into(DyclSession* session, const DyclValue* inputs, size_t num_inputs,
                               const DLTensor* const* outputs, size_t num_outputs,
                               const DyclRunOptions* options, int32_t* site);

/** What dycl_run_async() calls when a run is over, in the session's thread: with what
 * dycl_run_into() would have returned. dycl_last_error() is there that of the run. It may use the
 * session, also begin the next run or destroy it. No exception may leave it. */
typedef void (*DyclDone)(void* user, int32_t status, int32_t site);

/** dycl_run_into() in a thread of the session's own, which is made for the first such run and ends
 * with the session; it takes no signals. Unless this returns an error, such as DYCL_ERROR_USAGE
 * where a run goes on already, `done` is called once. Until then the tensors must live and stay as
 * they are (the arrays may go), and nothing may be done with the session but:
 *  - dycl_cancel(), which ends the run, also one that has hardly begun;
 *  - dycl_session_destroy(), which ends it too and waits until `done` has returned.
 * Other functions that would run it or change it return DYCL_ERROR_USAGE. A deadline counts from
 * this call on. In a child of fork() the run does not go on, `done` is not called, and the session
 * can only be destroyed; one that was not running can be used there. */
DYCL_API int32_t dycl_run_async(DyclSession* session, const DyclValue* inputs, size_t num_inputs,
                                const DLTensor* const* outputs, size_t num_outputs,
                                const DyclRunOptions* options, DyclDone done, void* user);

/** Ends the run of a session that goes on in another thread: before its next kernel, with
 * DYCL_ERROR_CANCELLED. The session can be used again at once, and its state is as before the run.
 * Without a run it has no effect. May be called by any thread and by signal handlers; NULL is
 * allowed. */
DYCL_API void dycl_cancel(DyclSession* session);

/** Tells how many leaves the last run returned. */
DYCL_API int32_t dycl_num_outputs(const DyclSession* session, size_t* count);

/** Gives the k-th leaf of the last run. A tensor is a view, of the shape that it has in this run:
 * it is valid until the next run of the session, and where the network returns one of its inputs it
 * is a view of that input. */
DYCL_API int32_t dycl_output(const DyclSession* session, size_t k, DyclValue* out);

/** Copies the k-th leaf of the last run, a tensor, into a compact tensor of its type and size,
 * which may be in CPU memory or, for a model for a GPU, on that GPU. */
DYCL_API int32_t dycl_copy_output(DyclSession* session, size_t k, const DLTensor* to);

/** Gives the decisions of the last run in order. `*total` is their number; when more were taken
 * than the session keeps or `capacity` allows, the last ones are given and `*written` says how
 * many. */
DYCL_API int32_t dycl_path(const DyclSession* session, DyclPathEntry* entries, size_t capacity,
                           size_t* written, uint64_t* total);

/** Tells which decision of the last run was not taken by its condition but because of its budget:
 * its place in the path, counted from 0; UINT64_MAX where all were taken by their conditions. */
DYCL_API int32_t dycl_path_cut(const DyclSession* session, uint64_t* at);

/** Writes the path of the last run as text with the user's files and lines. `*needed` is the size
 * with the closing NUL; the text is cut where `capacity` is less. */
DYCL_API int32_t dycl_path_text(const DyclSession* session, char* buffer, size_t capacity,
                                size_t* needed);

/** Tells how often each kernel ran in the last run, in the order of "kernels" of the metadata. */
DYCL_API int32_t dycl_kernel_runs(const DyclSession* session, uint64_t* counts, size_t capacity);

/** Tells how often each kernel call ran in the last run, in the order of "calls" of the metadata.
 */
DYCL_API int32_t dycl_call_runs(const DyclSession* session, uint64_t* counts, size_t capacity);

/** Puts the state variables back to their initial values. */
DYCL_API int32_t dycl_reset_state(DyclSession* session);

/** Copies the state variables, that of random numbers too, to `buffer`: bytes that
 * dycl_set_state() of a session of the same model takes. `*needed` is their number; nothing is
 * copied where `capacity` is less. */
DYCL_API int32_t dycl_get_state(DyclSession* session, void* buffer, size_t capacity,
                                size_t* needed);

/** Sets the state variables to what dycl_get_state() of a session of the same model gave. */
DYCL_API int32_t dycl_set_state(DyclSession* session, const void* buffer, size_t size);

/** Gives this session's random numbers a seed, as torch.manual_seed does in PyTorch: from then on
 * the network draws what it draws there on a CPU. A new session has the seed 67280421310721, that
 * of a new torch.Generator. A network without random numbers takes any seed. */
DYCL_API int32_t dycl_manual_seed(DyclSession* session, uint64_t seed);

/** Records the runs of a session from now on. A run allocates nothing for it; where the ring is
 * full the oldest events make room. For models that run on the CPU. */
DYCL_API int32_t dycl_profile_start(DyclSession* session, const DyclProfileOptions* options);

/** Takes up to `capacity` of the oldest events out of the ring, which may hold more events than it
 * has slots: none is left when `*written` is less than `capacity`. `*lost` (may be NULL) is how
 * many have had to make room since the start. */
DYCL_API int32_t dycl_profile_read(DyclSession* session, DyclEvent* events, size_t capacity,
                                   size_t* written, uint64_t* lost);

/** Ends the profile of a session; the ring is the caller's again, and what was not read is gone. */
DYCL_API int32_t dycl_profile_stop(DyclSession* session);

/** What a text is. */
enum DyclLogLevel {
  DYCL_LOG_NOTHING = 0,
  /** What the network prints (it was built with keep_print). */
  DYCL_LOG_PRINT = 1,
  /** What went otherwise than was asked for, such as fewer threads, and is no error. */
  DYCL_LOG_WARNING = 2
};

/** Gets a text; it is not ended by a NUL and lives during the call. A print comes with its end of
 * line, and in pieces where it is longer than some hundred bytes; the pieces of one text follow one
 * another. Called by the thread that runs, by one at a time: it must not wait for a
 * thread that may have a text too. It may run other sessions. No exception may leave it. */
typedef void (*DyclLog)(void* user, int32_t level, const char* text, size_t size);

/** Sends the texts of this library to `function`, those up to `level` (a DyclLogLevel), for all its
 * models and sessions. At first, and with NULL, prints go to the standard output and other texts
 * nowhere. When it returns, the function that was there before is not called any more. */
DYCL_API void dycl_set_log(DyclLog function, void* user, int32_t level);

/** The message of this thread's last error; never NULL. */
DYCL_API const char* dycl_last_error(void);

/** The kind of this thread's last error: InputError, ArtifactError, MemoryError, UsageError,
 * DeviceError, CancelledError, DeadlineError, or the exception type that the network raised
 * (IndexError, OverflowError, ...); never NULL. */
DYCL_API const char* dycl_last_error_kind(void);

/** All functions in one table, for hosts that load a model by dlopen. Functions are added at its
 * end: a model that was built before has a smaller struct_size. */
typedef struct {
  size_t struct_size;
  int32_t abi_version;
  const char* (*metadata)(void);
  int32_t (*model_create)(const char*, DyclModel**);
  void (*model_destroy)(DyclModel*);
  int32_t (*model_info)(const DyclModel*, DyclModelInfo*);
  int32_t (*session_create)(DyclModel*, DyclSession**);
  void (*session_destroy)(DyclSession*);
  int32_t (*session_set_num_threads)(DyclSession*, int32_t);
  int32_t (*run)(DyclSession*, const DyclValue*, size_t, int32_t*);
  int32_t (*num_outputs)(const DyclSession*, size_t*);
  int32_t (*output)(const DyclSession*, size_t, DyclValue*);
  int32_t (*path)(const DyclSession*, DyclPathEntry*, size_t, size_t*, uint64_t*);
  int32_t (*path_text)(const DyclSession*, char*, size_t, size_t*);
  int32_t (*kernel_runs)(const DyclSession*, uint64_t*, size_t);
  int32_t (*call_runs)(const DyclSession*, uint64_t*, size_t);
  int32_t (*reset_state)(DyclSession*);
  const char* (*last_error)(void);
  const char* (*last_error_kind)(void);
  int32_t (*copy_output)(DyclSession*, size_t, const DLTensor*);
  int32_t (*manual_seed)(DyclSession*, uint64_t);
  int32_t (*session_set_device_branches)(DyclSession*, int32_t);
  int32_t (*run_tensors)(DyclSession*, const DLTensor* const*, size_t, int32_t*);
  int32_t (*model_create_with)(const char*, const DyclModelOptions*, DyclModel**);
  int32_t (*run_with)(DyclSession*, const DyclValue*, size_t, const DyclRunOptions*, int32_t*);
  void (*cancel)(DyclSession*);
  int32_t (*get_state)(DyclSession*, void*, size_t, size_t*);
  int32_t (*set_state)(DyclSession*, const void*, size_t);
  int32_t (*input_bounds)(size_t, DyclExtent*, size_t, size_t*);
  int32_t (*profile_start)(DyclSession*, const DyclProfileOptions*);
  int32_t (*profile_read)(DyclSession*, DyclEvent*, size_t, size_t*, uint64_t*);
  int32_t (*profile_stop)(DyclSession*);
  int32_t (*path_cut)(const DyclSession*, uint64_t*);
  int32_t (*params_fd)(const DyclModel*);
  int32_t (*run_into)(DyclSession*, const DyclValue*, size_t, const DLTensor* const*, size_t,
                      const DyclRunOptions*, int32_t*);
  int32_t (*session_create_with)(DyclModel*, const DyclSessionOptions*, DyclSession**);
  int32_t (*run_async)(DyclSession*, const DyclValue*, size_t, const DLTensor* const*, size_t,
                       const DyclRunOptions*, DyclDone, void*);
  void (*set_log)(DyclLog, void*, int32_t);
  const char* (*user_metadata)(const char*);
  int32_t (*session_set_cuda_stream)(DyclSession*, int32_t, void*);
  int32_t (*unload)(DyclModel*);
  int32_t (*set_thread_options)(const DyclThreadOptions*);
  int32_t (*set_parallel)(DyclParallelFor, void*, int32_t);
  int32_t (*session_set_priority)(DyclSession*, int32_t);
  int32_t (*session_needs)(const DyclModel*, const DyclSessionOptions*, DyclModelInfo*);
  int32_t (*session_input_bounds)(const DyclSession*, size_t, DyclExtent*, size_t, size_t*);
} DyclApi;

/** Returns the table, or NULL if this model does not speak that version. */
DYCL_API const DyclApi* dycl_api(int32_t abi_version);

#ifdef __cplusplus
}
#endif

#endif /* DYCL_DYCL_H_ */
