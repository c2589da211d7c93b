/* The messages between a worker and its script. Plain C, included by both sides: script_channel.cc
 * and libthermocline.c.
 *
 * Messages go over a SOCK_SEQPACKET pair: a tc_header and its payload, at most TC_MESSAGE_BYTES
 * together, and at most one descriptor. Larger data lies in shared memory:
 *
 *   slot   The memory of a batch: its arrays, and behind them those that the script answers with.
 *          The worker makes it, sealed so that its size is fixed, and sends its descriptor with the
 *          first TC_BATCH that names the slot's number; a later descriptor replaces the memory. The
 *          worker places every array itself and reads only values out of it: whatever a script
 *          writes there, no offset or size of the worker's changes.
 *   file   The job's JSON and the script's state: one memory file for each message.
 *
 * Integers are those of the machine, since both processes run on one.
 */
#ifndef THERMOCLINE_WORKER_API_SCRIPT_PROTOCOL_H_
#define THERMOCLINE_WORKER_API_SCRIPT_PROTOCOL_H_

#include <stdint.h>

#include "worker/api/thermocline.h"

#define TC_PROTOCOL 3u
#define TC_MESSAGE_BYTES 65536u
#define TC_PAYLOAD_BYTES (TC_MESSAGE_BYTES - 48u)
/* A worker makes at most this many slots; their numbers are below it. */
#define TC_MAX_SLOTS 4096u

/* The script's environment has "FD:PID": the descriptor of its end of the pair, and the process
 * that may use it. */
#define TC_ENVIRONMENT "THERMOCLINE_WORKER"

enum tc_message_kind {
  /* From the worker. */
  TC_HELLO = 1, /* The payload is the worker's version, `count` its TC_PROTOCOL; a file of `bytes`
                   has the job as JSON. The first message. Answered by TC_READY. */
  TC_BATCH = 2, /* The payload is tc_array_place[count], `bytes` the number of samples; a descriptor
                   where the slot's memory is new. Answered by TC_STEP or TC_SCORES. */
  TC_SAVE = 3,  /* A checkpoint is written. Answered by TC_STATE. */
  TC_LOAD = 4,  /* A file whose first `bytes` are a state that was saved. Before the first batch. */
  TC_PHASE = 5, /* The payload is JSON: training is over, or the figures of an evaluation. */
  TC_END = 6,   /* The worker ends the script; the payload says why. The last message. */
  /* From the script. */
  TC_READY = 32,    /* The payload is the library's version, `count` its TC_PROTOCOL. */
  TC_STEP = 33,     /* Closes the step: `value` is the sum of losses, `rate` the learning rate. */
  TC_SCORES = 34,   /* The scores of the batch stand in its slot. */
  TC_RELEASE = 35,  /* The script does not use the slot's memory any more. */
  TC_STATE = 36,    /* A file of exactly `bytes`, sealed against any change. */
  TC_EVALUATE = 37, /* The script scores what is held out, after training. */
  TC_FAILED = 38,   /* The script has failed; the payload has the traceback. */
  TC_DONE = 39,     /* The script needs nothing more, and ends with success. */
  TC_WARNING = 40   /* The payload is a text for the user. */
};

/* Flags of a header, beside those of tc_step_flag. */
enum tc_batch_flag {
  TC_EVALUATES = 1 /* TC_BATCH: answered by TC_SCORES, not by TC_STEP. */
};

typedef struct tc_header { /* 48 bytes */
  uint32_t kind;           /* a tc_message_kind */
  uint32_t slot;           /* TC_BATCH and what answers it */
  int64_t step;            /* TC_BATCH and what answers it */
  uint64_t bytes;          /* see the kinds */
  double value;            /* see the kinds */
  float rate;              /* NaN: the job's learning rate */
  uint32_t flags;
  uint32_t count; /* see the kinds */
  uint32_t reserved;
} tc_header;

/* Where an array lies in its slot. */
typedef struct tc_array_place { /* 24 bytes */
  uint32_t kind;                /* a tc_array_kind */
  uint32_t index;
  uint64_t offset; /* bytes from the slot's beginning, a multiple of 64 */
  uint64_t count;  /* elements */
} tc_array_place;

#endif /* THERMOCLINE_WORKER_API_SCRIPT_PROTOCOL_H_ */
