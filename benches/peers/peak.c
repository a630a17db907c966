// Measures the limits of the processor: read bandwidth, and the throughput of the instructions of matrix products.
//
//   peak list                              the measures that this processor supports, one per line
//   peak MEASURE THREADS [KIB PASSES]      one number, in 1e9 bytes or operations per second; KIB and PASSES are for `read`
//
// Each measure is a loop of inline assembly whose accumulators stay in registers: compiled intrinsics would spill them,
// and the loop would measure the store buffer. A multiplication and an addition count as two operations.
// cc -O2 -pthread peak.c -o peak
#define _GNU_SOURCE
#include <cpuid.h>
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_THREADS = 64, PAGE = 4096, HUGE_PAGE = 2 << 20, TURNS = 25000000, WARM_UP_PART = 10 };

typedef long long Line __attribute__((vector_size(16)));

typedef struct {
  const char *name;
  int (*present)(void);
  // Runs `turns` iterations; null for `read`.
  void (*loop)(long turns);
  // Multiplications and additions per iteration.
  double operations;
} Measure;

typedef struct {
  pthread_t thread;
  const Measure *measure;
  int core;
  char *memory;
  size_t bytes;
  int passes;
  double began, ended, work;
} Job;

static pthread_barrier_t all_ready;
static volatile long long sink;

// Ten or twelve accumulators: enough to hide the latency at two instructions per cycle, with registers left for operands.
#define TEN(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9)
#define TWELVE(X) TEN(X) X(10) X(11)
#define DECLARE_XMM(i) __m128i s##i = _mm_setzero_si128();
#define DECLARE_YMM(i) __m256i s##i = _mm256_setzero_si256();
#define DECLARE_ZMM(i) __m512i s##i = _mm512_setzero_si512();
#define KEEP(i) __asm__ volatile("" ::"v"(s##i));
#define KEEP_X(i) __asm__ volatile("" ::"x"(s##i));

// Adds a product of `a` and `b` to an accumulator, in one instruction.
#define FUSED(i) __asm__ volatile(FUSED_CODE " %2, %1, %0" : "+x"(s##i) : "x"(a), "x"(b));
#define FUSED_V(i) __asm__ volatile(FUSED_CODE " %2, %1, %0" : "+v"(s##i) : "v"(a), "v"(b));

// 0.5 as bf16, about 0.5 as f32, and bytes below 128.
#define OPERAND 0x3f003f00
#define LOOP(NAME, TARGET, VECTOR, FILL, SUMS, DECLARE, ONE, KEEP_ONE) \
  __attribute__((noinline, target(TARGET))) static void NAME(long turns) { \
    VECTOR a = FILL(OPERAND), b = FILL(OPERAND); \
    SUMS(DECLARE) \
    for (long turn = 0; turn < turns; turn++) { SUMS(ONE) } \
    SUMS(KEEP_ONE) \
  }

#define MULPS(i) { __m128i t = a; __asm__ volatile("mulps %2, %1\n\taddps %1, %0" : "+x"(s##i), "+x"(t) : "x"(b)); }
LOOP(mulps_128, "sse2", __m128i, _mm_set1_epi32, TEN, DECLARE_XMM, MULPS, KEEP_X)

#define PMADDWD(i) { __m128i t = a; __asm__ volatile("pmaddwd %2, %1\n\tpaddd %1, %0" : "+x"(s##i), "+x"(t) : "x"(b)); }
LOOP(pmaddwd_128, "sse2", __m128i, _mm_set1_epi32, TEN, DECLARE_XMM, PMADDWD, KEEP_X)

#define FUSED_CODE "vfmadd231ps"
LOOP(fma_256, "avx2,fma", __m256i, _mm256_set1_epi32, TWELVE, DECLARE_YMM, FUSED, KEEP_X)
LOOP(fma_512, "avx512f", __m512i, _mm512_set1_epi32, TWELVE, DECLARE_ZMM, FUSED_V, KEEP)
#undef FUSED_CODE

#define MADD_CODE "vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0"
#define MADD(i) { __m256i t; __asm__ volatile(MADD_CODE : "+x"(s##i), "=&x"(t) : "x"(a), "x"(b)); }
#define MADD_V(i) { __m512i t; __asm__ volatile(MADD_CODE : "+v"(s##i), "=&v"(t) : "v"(a), "v"(b)); }
LOOP(maddwd_256, "avx2", __m256i, _mm256_set1_epi32, TEN, DECLARE_YMM, MADD, KEEP_X)
LOOP(maddwd_512, "avx512f,avx512bw", __m512i, _mm512_set1_epi32, TEN, DECLARE_ZMM, MADD_V, KEEP)

#define I32_CODE "vpmaddubsw %3, %2, %1\n\tvpmaddwd %3, %1, %1\n\tvpaddd %1, %0, %0"
#define I32(i) { __m256i t; __asm__ volatile(I32_CODE : "+x"(s##i), "=&x"(t) : "x"(a), "x"(b)); }
#define I32_V(i) { __m512i t; __asm__ volatile(I32_CODE : "+v"(s##i), "=&v"(t) : "v"(a), "v"(b)); }
LOOP(maddubs_i32_256, "avx2", __m256i, _mm256_set1_epi32, TEN, DECLARE_YMM, I32, KEEP_X)
LOOP(maddubs_i32_512, "avx512f,avx512bw", __m512i, _mm512_set1_epi32, TEN, DECLARE_ZMM, I32_V, KEEP)

#define I16_CODE "vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
#define I16(i) { __m256i t; __asm__ volatile(I16_CODE : "+x"(s##i), "=&x"(t) : "x"(a), "x"(b)); }
#define I16_V(i) { __m512i t; __asm__ volatile(I16_CODE : "+v"(s##i), "=&v"(t) : "v"(a), "v"(b)); }
LOOP(maddubs_i16_256, "avx2", __m256i, _mm256_set1_epi32, TEN, DECLARE_YMM, I16, KEEP_X)
LOOP(maddubs_i16_512, "avx512f,avx512bw", __m512i, _mm512_set1_epi32, TEN, DECLARE_ZMM, I16_V, KEEP)

#define FUSED_CODE "%{vex%} vpdpbusd"
LOOP(dpbusd_256, "avx2", __m256i, _mm256_set1_epi32, TWELVE, DECLARE_YMM, FUSED, KEEP_X)
#undef FUSED_CODE
#define FUSED_CODE "vpdpbusd"
LOOP(dpbusd_512, "avx512f", __m512i, _mm512_set1_epi32, TWELVE, DECLARE_ZMM, FUSED_V, KEEP)
#undef FUSED_CODE
#define FUSED_CODE "vdpbf16ps"
LOOP(dpbf16_512, "avx512f", __m512i, _mm512_set1_epi32, TWELVE, DECLARE_ZMM, FUSED_V, KEEP)
#undef FUSED_CODE

// AMX tiles have sixteen rows of 64 bytes. On Linux, a process must request permission to use them.
enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
static int has_amx(void) {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1) &&
         !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}
#define TILES(NAME, CODE) \
  static void NAME(long turns) { \
    struct { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } config = {.palette = 1}; \
    for (int i = 0; i < 8; i++) config.bytes[i] = 64, config.rows[i] = 16; \
    __asm__ volatile("ldtilecfg %0" ::"m"(config)); \
    for (long turn = 0; turn < turns / TILE_PART; turn++) \
      __asm__ volatile(CODE " %tmm6, %tmm4, %tmm0\n\t" CODE " %tmm7, %tmm4, %tmm1\n\t" \
                       CODE " %tmm6, %tmm5, %tmm2\n\t" CODE " %tmm7, %tmm5, %tmm3"); \
    __asm__ volatile("tilerelease"); \
  }
// AMX runs fewer iterations, as each takes longer.
enum { TILE_PART = 5 };
TILES(bf16_amx, "tdpbf16ps")
TILES(int8_amx, "tdpbsud")

static int always(void) { return 1; }
static int has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static int has_avx_vnni(void) { return has_avx2() && __builtin_cpu_supports("avxvnni"); }
static int has_avx512(void) { return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"); }
static int has_vnni(void) { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
static int has_bf16(void) { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

// Operations: accumulators x lanes x products per lane x 2.
static const Measure MEASURES[] = {
    {"read", always, 0, 0},
    {"mulps_128", always, mulps_128, 10 * 4 * 2},
    {"pmaddwd_128", always, pmaddwd_128, 10 * 4 * 2 * 2},
    {"fma_256", has_avx2, fma_256, 12 * 8 * 2},
    {"maddwd_256", has_avx2, maddwd_256, 10 * 8 * 2 * 2},
    {"maddubs_i32_256", has_avx2, maddubs_i32_256, 10 * 8 * 4 * 2},
    {"maddubs_i16_256", has_avx2, maddubs_i16_256, 10 * 16 * 2 * 2},
    {"dpbusd_256", has_avx_vnni, dpbusd_256, 12 * 8 * 4 * 2},
    {"fma_512", has_avx512, fma_512, 12 * 16 * 2},
    {"maddwd_512", has_avx512, maddwd_512, 10 * 16 * 2 * 2},
    {"maddubs_i32_512", has_avx512, maddubs_i32_512, 10 * 16 * 4 * 2},
    {"maddubs_i16_512", has_avx512, maddubs_i16_512, 10 * 32 * 2 * 2},
    {"dpbusd_512", has_vnni, dpbusd_512, 12 * 16 * 4 * 2},
    {"dpbf16_512", has_bf16, dpbf16_512, 12 * 16 * 2 * 2},
    {"bf16_amx", has_amx, bf16_amx, 4.0 * 16 * 16 * 32 * 2 / TILE_PART},
    {"int8_amx", has_amx, int8_amx, 4.0 * 16 * 16 * 64 * 2 / TILE_PART},
};
enum { COUNT = sizeof MEASURES / sizeof MEASURES[0] };

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec + 1e-9 * at.tv_nsec;
}

static void read_once(const char *from, size_t bytes) {
  Line s0 = {0}, s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
  const Line *line = (const Line *)from, *end = (const Line *)(from + bytes);
  for (; line < end; line += 8) {
    s0 ^= line[0]; s1 ^= line[1]; s2 ^= line[2]; s3 ^= line[3];
    s4 ^= line[4]; s5 ^= line[5]; s6 ^= line[6]; s7 ^= line[7];
  }
  s0 ^= s1 ^ s2 ^ s3 ^ s4 ^ s5 ^ s6 ^ s7;
  sink = s0[0] ^ s0[1];
}

static void *work(void *argument) {
  Job *job = argument;
  const Measure *measure = job->measure;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(job->core, &cores);
  pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
  if (measure->loop) {
    measure->loop(TURNS / WARM_UP_PART);
  } else {
    // Each thread is the first to touch the pages that it reads.
    for (size_t at = 0; at < job->bytes; at += 64) *(int *)(job->memory + at) = (int)at;
    read_once(job->memory, job->bytes);
  }
  pthread_barrier_wait(&all_ready);
  job->began = now();
  if (measure->loop) {
    measure->loop(TURNS);
    job->work = TURNS * measure->operations;
  } else {
    for (int pass = 0; pass < job->passes; pass++) read_once(job->memory, job->bytes);
    job->work = (double)job->bytes * job->passes;
  }
  job->ended = now();
  return 0;
}

static double rate(const Measure *measure, int threads, char *memory, size_t bytes, int passes) {
  Job jobs[MAX_THREADS];
  size_t share = bytes / threads / PAGE * PAGE;
  pthread_barrier_init(&all_ready, 0, threads);
  for (int i = 0; i < threads; i++) {
    jobs[i] = (Job){.measure = measure, .core = i, .memory = memory + share * i, .bytes = share, .passes = passes};
    pthread_create(&jobs[i].thread, 0, work, &jobs[i]);
  }
  double first = 1e30, last = 0, done = 0;
  for (int i = 0; i < threads; i++) {
    pthread_join(jobs[i].thread, 0);
    first = jobs[i].began < first ? jobs[i].began : first;
    last = jobs[i].ended > last ? jobs[i].ended : last;
    done += jobs[i].work;
  }
  return done / (last - first) * 1e-9;
}

static char *memory_of(size_t bytes) {
  char *memory = mmap(0, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    perror("peak: mmap");
    exit(1);
  }
  memory = (char *)(((uintptr_t)memory + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

static const Measure *named(const char *name) {
  for (int i = 0; i < COUNT; i++)
    if (!strcmp(MEASURES[i].name, name) && MEASURES[i].present()) return &MEASURES[i];
  fprintf(stderr, "peak: this processor does not support %s; `peak list` prints the supported measures\n", name);
  exit(1);
}

int main(int count, char **words) {
  if (count == 2 && !strcmp(words[1], "list")) {
    for (int i = 0; i < COUNT; i++)
      if (MEASURES[i].present()) puts(MEASURES[i].name);
    return 0;
  }
  int threads = count > 2 ? atoi(words[2]) : 0;
  if (threads < 1 || threads > MAX_THREADS) {
    fprintf(stderr, "usage: peak list | peak MEASURE THREADS [KIB PASSES]\n");
    return 1;
  }
  const Measure *measure = named(words[1]);
  if (measure->loop) {
    printf("%.3f\n", rate(measure, threads, 0, 0, 0));
    return 0;
  }
  size_t bytes = (size_t)(count > 3 ? atol(words[3]) : 1 << 20) << 10;
  printf("%.3f\n", rate(measure, threads, memory_of(bytes), bytes, count > 4 ? atoi(words[4]) : 4));
  return 0;
}
