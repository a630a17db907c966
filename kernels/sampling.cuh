// What sampling.cu, logprobs.cu and batch.cu are called with; see params.cuh for the rules.
#pragma once
#include "params.cuh"

constexpr uint32_t kNone = 0xffffffffu;  // no slot, no mask, no sampled row
constexpr uint32_t kFirstRow = 1;        // row 0 is padding: it is read and written by nobody

// ---- rows, as they live on the device between steps: arrays of [n_rows], by row of the page table

// How a row samples; set when it starts.
struct RowSampler {
  double temperature;          // at least 1e-6
  double inverse_temperature;  // 1 / temperature, rounded to nearest
  uint64_t seed;
  float top_p;  // in (0, 1]
  float min_p;  // in [0, 1]
  float frequency_penalty, presence_penalty;
  float repetition_penalty;  // above 0
  uint32_t top_k;            // the vocabulary's size or more: no limit
  uint32_t is_greedy;        // 0 or 1: takes the most likely token
  uint32_t min_new_tokens;
  uint32_t count_slot;  // of SampleParams::counts; kNone if no penalty is set
  // Of SampleParams::biases: by ascending token, equal ones in the request's order.
  uint32_t first_bias, n_biases;
  // Of SampleParams::bans, what is not sampled before min_new_tokens: ascending, each once.
  uint32_t first_ban, n_bans;
  uint32_t reserved;
};
static_assert(sizeof(RowSampler) == 80, "mirrored by the host");

// What a row has come to; kernels go on from it without the host.
struct RowState {
  uint32_t last_token;  // sampled last
  uint32_t n_output;    // output tokens so far: the position of the next draw
};
static_assert(sizeof(RowState) == 8, "mirrored by the host");

struct TokenBias {
  uint32_t token;
  float bias;
};
static_assert(sizeof(TokenBias) == 8, "mirrored by the host");

// ---- starting rows

struct RowBegin {
  uint32_t row;
  uint32_t n_output;  // of its tokens: not 0 after a retraction
  RowSampler sampler;
};
static_assert(sizeof(RowBegin) == 88, "mirrored by the host");

struct BeginRowsParams {
  RowSampler* samplers;    // [n_rows]
  RowState* states;        // [n_rows]
  const RowBegin* begins;  // rows of a list are distinct
  uint32_t n_begins;
  uint32_t reserved;
};
static_assert(sizeof(BeginRowsParams) == 32, "mirrored by the host");

// Tokens of a row that starts. Its slot is cleared; tokens of the prompt are seen, those of the output also counted.
struct CountRun {
  uint32_t slot;
  uint32_t first_token;  // of CountParams::tokens: the prompt, then the output
  uint32_t n_prompt;
  uint32_t n_output;
};
static_assert(sizeof(CountRun) == 16, "mirrored by the host");

constexpr uint32_t kSeen = 0x80000000u;  // bit of a count: the token is in the prompt or in the output

struct CountParams {
  uint32_t* counts;      // [n_slots, vocab]: kSeen, and in the low bits how often the output holds the token
  const CountRun* runs;  // slots of a list are distinct
  const uint32_t* tokens;  // ids beyond the vocabulary are passed over
  uint32_t n_runs;
  uint32_t vocab;
};
static_assert(sizeof(CountParams) == 32, "mirrored by the host");

// Tokens that the host chose become output of their rows.
struct RecordedToken {
  uint32_t row;  // 0: padding
  uint32_t token;
};
static_assert(sizeof(RecordedToken) == 8, "mirrored by the host");

struct RecordParams {
  RowState* states;             // [n_rows]
  const RowSampler* samplers;   // [n_rows]
  uint32_t* counts;             // [n_slots, vocab]
  const RecordedToken* tokens;  // rows of a list are distinct
  uint32_t n_tokens;
  uint32_t vocab;
};
static_assert(sizeof(RecordParams) == 40, "mirrored by the host");

// ---- sampling

struct SampleWork {
  uint32_t row;         // 0: padding, nothing is sampled
  uint32_t logits_row;  // of SampleParams::logits
  uint32_t mask;        // of SampleParams::masks; kNone: all tokens are allowed
  uint32_t may_ban;     // 0 or 1: the mask allows more than banned tokens (1 without a mask)
};
static_assert(sizeof(SampleWork) == 16, "mirrored by the host");

enum SampledFlags : uint32_t {
  kNan = 1,  // the logits hold a NaN, or every token is ruled out: the token means nothing
};

struct Sampled {
  uint32_t token;
  uint32_t flags;     // SampledFlags
  float logprob;      // of the token, from raw logits; NaN where no logprob kernel was asked for it
  uint32_t n_output;  // output tokens of the row with this one; 0: padding
};
static_assert(sizeof(Sampled) == 16, "mirrored by the host");

// The most likely token of a chunk of a row.
struct ChunkPeak {
  float logit;
  uint32_t token;
  uint32_t nan;  // a raw logit of the chunk is NaN
  uint32_t reserved;
};
static_assert(sizeof(ChunkPeak) == 16, "mirrored by the host");

constexpr uint32_t kClasses = 512;  // of weights, as in filter.rs
constexpr uint32_t kSumBlock = 64;  // weights summed to one number, as in filter.rs
constexpr uint32_t kMaxChunk = 16384;

// The weights of one class, added up without a rounding: mantissas in 52 bits, `low` the last 18 of each.
struct ClassSum {
  uint64_t high, low;
  uint32_t count;
  uint32_t reserved;
};
static_assert(sizeof(ClassSum) == 24, "mirrored by the host");

struct SampleParams {
  Sampled* out;                // [n_works]
  const float* logits;         // [rows of logits, stride]; not changed
  const SampleWork* works;     // [n_works]; a row stands in one of them at most
  const RowSampler* samplers;  // [n_rows]
  RowState* states;            // [n_rows]
  uint32_t* counts;            // [n_slots, vocab], see CountParams
  const TokenBias* biases;
  const uint32_t* bans;
  const uint32_t* masks;  // [n_masks, mask_words]: bit t % 32 of word t / 32 set: token t is allowed
  ChunkPeak* peaks;       // workspace [n_works, n_chunks]
  double* block_sums;     // workspace [n_works, ceil(vocab / kSumBlock)]
  ClassSum* classes;      // workspace [n_works, kClasses]
  double tie_margin;      // 4e-12; a sum this near to its target (relative to the mass) is done over in order
  uint32_t vocab;         // at most 2^19
  uint32_t stride;        // floats from one row of logits to the next
  uint32_t n_works;
  uint32_t chunk;     // tokens of a block of the first two kernels: a multiple of 1024, at most kMaxChunk
  uint32_t n_chunks;  // ceil(vocab / chunk)
  uint32_t mask_words;
};
static_assert(sizeof(SampleParams) == 128, "mirrored by the host");

// ---- log probabilities

constexpr uint32_t kMaxTop = 64;          // most likely tokens at most; more: the host ranks a copied row
constexpr uint32_t kLogprobChunk = 4096;  // tokens of a block

struct LogprobWork {
  uint32_t logits_row;
  uint32_t token;     // whose log probability is wanted, unless it was sampled
  uint32_t sampled;   // index in LogprobParams::sampled of the token that was, or kNone
  uint32_t top;       // most likely tokens wanted: at most LogprobParams::max_top and the vocabulary
  uint32_t first_id;  // of LogprobParams::ids
  uint32_t n_ids;
  uint32_t first_out;  // of LogprobParams::out, 1 + top + n_ids: the token, the most likely ones, those of ids
  uint32_t reserved;
};
static_assert(sizeof(LogprobWork) == 32, "mirrored by the host");

struct TokenLogprob {
  uint32_t token;
  float logprob;  // minus infinity for an id beyond the vocabulary
};
static_assert(sizeof(TokenLogprob) == 8, "mirrored by the host");

// Exponentials of a chunk: sum of exp(logit - max).
struct ChunkMass {
  double sum;
  float max;
  uint32_t nan;
};
static_assert(sizeof(ChunkMass) == 16, "mirrored by the host");

struct LogprobParams {
  TokenLogprob* out;
  Sampled* sampled;          // tokens are read, log probabilities written; null if no work names one
  const float* logits;       // [rows of logits, stride]
  const LogprobWork* works;  // [n_works]
  const uint32_t* ids;
  ChunkMass* masses;  // workspace [n_works, n_chunks]
  uint64_t* highest;  // workspace [n_works, n_chunks, max_top]
  uint32_t vocab;     // at most 2^19
  uint32_t stride;
  uint32_t n_works;
  uint32_t n_chunks;  // ceil(vocab / kLogprobChunk)
  uint32_t max_top;   // at most kMaxTop
  uint32_t reserved;
};
static_assert(sizeof(LogprobParams) == 80, "mirrored by the host");

// ---- what a step is about

// Pages that are written side by side into a row of the page table.
struct TableRun {
  uint32_t row;
  uint32_t first_index;  // of the row's pages
  uint32_t n_pages;      // 0: padding
  uint32_t first_page;   // of EditTableParams::pages
};
static_assert(sizeof(TableRun) == 16, "mirrored by the host");

struct EditTableParams {
  uint32_t* page_table;  // [n_rows, table_stride]
  const TableRun* runs;  // applied as if one after the other
  const uint32_t* pages;
  uint32_t n_runs;
  uint32_t table_stride;
};
static_assert(sizeof(EditTableParams) == 32, "mirrored by the host");

struct DecodeRow {
  uint32_t row;       // 0: padding
  uint32_t position;  // of the row's last sampled token
};
static_assert(sizeof(DecodeRow) == 8, "mirrored by the host");

struct BeginDecodeParams {
  uint32_t* tokens;       // [n_rows]: the first of the step
  uint32_t* positions;    // [n_rows]
  uint32_t* slots;        // [n_rows]
  Segment* segments;      // [n_rows]
  const DecodeRow* rows;  // [n_rows], padding last
  const RowState* states;
  const uint32_t* page_table;
  uint32_t n_rows;
  uint32_t table_stride;
  uint32_t page_size;
  uint32_t reserved;
};
static_assert(sizeof(BeginDecodeParams) == 72, "mirrored by the host");

struct BeginPrefillParams {
  uint32_t* tokens;          // of the step
  uint32_t* positions;       // of the step
  uint32_t* slots;           // of the step
  const Segment* segments;   // of prefills, by ascending first_token; those of no tokens begin where the next does
  const uint32_t* uploaded;  // [n_tokens]: those of the step from first_token on
  const uint32_t* page_table;
  uint32_t first_token;  // of the step: behind the decodes
  uint32_t n_tokens;     // with padding: tokens that no segment holds get token 0, position 0, slot 0
  uint32_t n_segments;
  uint32_t table_stride;
  uint32_t page_size;
  uint32_t reserved;
};
static_assert(sizeof(BeginPrefillParams) == 72, "mirrored by the host");
