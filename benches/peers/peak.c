// Machine limits: memory read bandwidth, L2/L3 bandwidth, f32 FMA and bf16 vdpbf16ps and VNNI int8 peak.
// gcc -O3 -march=native -pthread peak.c -o peak
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <sys/mman.h>
static double now(){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec+1e-9*t.tv_nsec;}
static pthread_barrier_t bar;
typedef struct{int id,nt,kind;char*buf;size_t bytes;int reps;double t0,t1;double work;float sink;}A;
static void pin(int c){cpu_set_t s;CPU_ZERO(&s);CPU_SET(c,&s);pthread_setaffinity_np(pthread_self(),sizeof s,&s);}
static float rd(const char*p,size_t n,int pf){
  __m512i a0=_mm512_setzero_si512(),a1=a0,a2=a0,a3=a0,a4=a0,a5=a0,a6=a0,a7=a0;
  const char*e=p+n;
  if(pf) for(;p<e;p+=512){
    for(int k=0;k<8;k++)_mm_prefetch(p+k*64+4096,_MM_HINT_NTA);
    a0=_mm512_xor_si512(a0,_mm512_load_si512(p));a1=_mm512_xor_si512(a1,_mm512_load_si512(p+64));
    a2=_mm512_xor_si512(a2,_mm512_load_si512(p+128));a3=_mm512_xor_si512(a3,_mm512_load_si512(p+192));
    a4=_mm512_xor_si512(a4,_mm512_load_si512(p+256));a5=_mm512_xor_si512(a5,_mm512_load_si512(p+320));
    a6=_mm512_xor_si512(a6,_mm512_load_si512(p+384));a7=_mm512_xor_si512(a7,_mm512_load_si512(p+448));
  } else for(;p<e;p+=512){
    a0=_mm512_xor_si512(a0,_mm512_load_si512(p));a1=_mm512_xor_si512(a1,_mm512_load_si512(p+64));
    a2=_mm512_xor_si512(a2,_mm512_load_si512(p+128));a3=_mm512_xor_si512(a3,_mm512_load_si512(p+192));
    a4=_mm512_xor_si512(a4,_mm512_load_si512(p+256));a5=_mm512_xor_si512(a5,_mm512_load_si512(p+320));
    a6=_mm512_xor_si512(a6,_mm512_load_si512(p+384));a7=_mm512_xor_si512(a7,_mm512_load_si512(p+448));
  }
  a0=_mm512_xor_si512(_mm512_xor_si512(_mm512_xor_si512(a0,a1),_mm512_xor_si512(a2,a3)),_mm512_xor_si512(_mm512_xor_si512(a4,a5),_mm512_xor_si512(a6,a7)));
  return (float)_mm512_reduce_add_epi32(a0);
}
#define N 12
static float fma32(long it){__m512 x=_mm512_set1_ps(0.5f),y=_mm512_set1_ps(1.f);__m512 a0=_mm512_set1_ps(0);__m512 a1=_mm512_set1_ps(1);__m512 a2=_mm512_set1_ps(2);__m512 a3=_mm512_set1_ps(3);__m512 a4=_mm512_set1_ps(4);__m512 a5=_mm512_set1_ps(5);__m512 a6=_mm512_set1_ps(6);__m512 a7=_mm512_set1_ps(7);__m512 a8=_mm512_set1_ps(8);__m512 a9=_mm512_set1_ps(9);__m512 a10=_mm512_set1_ps(10);__m512 a11=_mm512_set1_ps(11);for(long k=0;k<it;k++){__asm__ volatile("vfmadd213ps %2,%1,%0":"+v"(a0):"v"(x),"v"(y));__asm__ volatile("vfmadd213ps %2,%1,%0":"+v"(a1):"v"(x),"v"(y));__asm__ volatile("vfmadd213ps %2,%1,%0":"+v"(a2):"v"(x),"v"(y));__asm__ volatile("vfmadd213ps %2,%1,%0":"+v"(a3):"v"(x),"v"(y));__asm__ volatile("vfmadd213ps %2,%1,%0":"+v"(a4):"v"(x),"v"(y));__asm__ volatile("vfmadd213ps %2,%1,%0":"+v"(a5):"v"(x),"v"(y));__asm__ volatile("vfmadd213ps %2,%1,%0":"+v"(a6):"v"(x),"v"(y));__asm__ volatile("vfmadd213ps %2,%1,%0":"+v"(a7):"v"(x),"v"(y));__asm__ volatile("vfmadd213ps %2,%1,%0":"+v"(a8):"v"(x),"v"(y));__asm__ volatile("vfmadd213ps %2,%1,%0":"+v"(a9):"v"(x),"v"(y));__asm__ volatile("vfmadd213ps %2,%1,%0":"+v"(a10):"v"(x),"v"(y));__asm__ volatile("vfmadd213ps %2,%1,%0":"+v"(a11):"v"(x),"v"(y));}return _mm512_reduce_add_ps(a0)+_mm512_reduce_add_ps(a1)+_mm512_reduce_add_ps(a2)+_mm512_reduce_add_ps(a3)+_mm512_reduce_add_ps(a4)+_mm512_reduce_add_ps(a5)+_mm512_reduce_add_ps(a6)+_mm512_reduce_add_ps(a7)+_mm512_reduce_add_ps(a8)+_mm512_reduce_add_ps(a9)+_mm512_reduce_add_ps(a10)+_mm512_reduce_add_ps(a11);}
static float fbf(long it){__m512i x=_mm512_set1_epi16(0x3f80),y=_mm512_set1_epi16(0x3f80);__m512 a0=_mm512_set1_ps(0);__m512 a1=_mm512_set1_ps(1);__m512 a2=_mm512_set1_ps(2);__m512 a3=_mm512_set1_ps(3);__m512 a4=_mm512_set1_ps(4);__m512 a5=_mm512_set1_ps(5);__m512 a6=_mm512_set1_ps(6);__m512 a7=_mm512_set1_ps(7);__m512 a8=_mm512_set1_ps(8);__m512 a9=_mm512_set1_ps(9);__m512 a10=_mm512_set1_ps(10);__m512 a11=_mm512_set1_ps(11);for(long k=0;k<it;k++){__asm__ volatile("vdpbf16ps %2,%1,%0":"+v"(a0):"v"(x),"v"(y));__asm__ volatile("vdpbf16ps %2,%1,%0":"+v"(a1):"v"(x),"v"(y));__asm__ volatile("vdpbf16ps %2,%1,%0":"+v"(a2):"v"(x),"v"(y));__asm__ volatile("vdpbf16ps %2,%1,%0":"+v"(a3):"v"(x),"v"(y));__asm__ volatile("vdpbf16ps %2,%1,%0":"+v"(a4):"v"(x),"v"(y));__asm__ volatile("vdpbf16ps %2,%1,%0":"+v"(a5):"v"(x),"v"(y));__asm__ volatile("vdpbf16ps %2,%1,%0":"+v"(a6):"v"(x),"v"(y));__asm__ volatile("vdpbf16ps %2,%1,%0":"+v"(a7):"v"(x),"v"(y));__asm__ volatile("vdpbf16ps %2,%1,%0":"+v"(a8):"v"(x),"v"(y));__asm__ volatile("vdpbf16ps %2,%1,%0":"+v"(a9):"v"(x),"v"(y));__asm__ volatile("vdpbf16ps %2,%1,%0":"+v"(a10):"v"(x),"v"(y));__asm__ volatile("vdpbf16ps %2,%1,%0":"+v"(a11):"v"(x),"v"(y));}return _mm512_reduce_add_ps(a0)+_mm512_reduce_add_ps(a1)+_mm512_reduce_add_ps(a2)+_mm512_reduce_add_ps(a3)+_mm512_reduce_add_ps(a4)+_mm512_reduce_add_ps(a5)+_mm512_reduce_add_ps(a6)+_mm512_reduce_add_ps(a7)+_mm512_reduce_add_ps(a8)+_mm512_reduce_add_ps(a9)+_mm512_reduce_add_ps(a10)+_mm512_reduce_add_ps(a11);}
static float fi8(long it){__m512i x=_mm512_set1_epi8(1),y=_mm512_set1_epi8(1);__m512i a0=_mm512_set1_epi32(0);__m512i a1=_mm512_set1_epi32(1);__m512i a2=_mm512_set1_epi32(2);__m512i a3=_mm512_set1_epi32(3);__m512i a4=_mm512_set1_epi32(4);__m512i a5=_mm512_set1_epi32(5);__m512i a6=_mm512_set1_epi32(6);__m512i a7=_mm512_set1_epi32(7);__m512i a8=_mm512_set1_epi32(8);__m512i a9=_mm512_set1_epi32(9);__m512i a10=_mm512_set1_epi32(10);__m512i a11=_mm512_set1_epi32(11);for(long k=0;k<it;k++){__asm__ volatile("vpdpbusd %2,%1,%0":"+v"(a0):"v"(x),"v"(y));__asm__ volatile("vpdpbusd %2,%1,%0":"+v"(a1):"v"(x),"v"(y));__asm__ volatile("vpdpbusd %2,%1,%0":"+v"(a2):"v"(x),"v"(y));__asm__ volatile("vpdpbusd %2,%1,%0":"+v"(a3):"v"(x),"v"(y));__asm__ volatile("vpdpbusd %2,%1,%0":"+v"(a4):"v"(x),"v"(y));__asm__ volatile("vpdpbusd %2,%1,%0":"+v"(a5):"v"(x),"v"(y));__asm__ volatile("vpdpbusd %2,%1,%0":"+v"(a6):"v"(x),"v"(y));__asm__ volatile("vpdpbusd %2,%1,%0":"+v"(a7):"v"(x),"v"(y));__asm__ volatile("vpdpbusd %2,%1,%0":"+v"(a8):"v"(x),"v"(y));__asm__ volatile("vpdpbusd %2,%1,%0":"+v"(a9):"v"(x),"v"(y));__asm__ volatile("vpdpbusd %2,%1,%0":"+v"(a10):"v"(x),"v"(y));__asm__ volatile("vpdpbusd %2,%1,%0":"+v"(a11):"v"(x),"v"(y));}return (float)_mm512_reduce_add_epi32(a0)+(float)_mm512_reduce_add_epi32(a1)+(float)_mm512_reduce_add_epi32(a2)+(float)_mm512_reduce_add_epi32(a3)+(float)_mm512_reduce_add_epi32(a4)+(float)_mm512_reduce_add_epi32(a5)+(float)_mm512_reduce_add_epi32(a6)+(float)_mm512_reduce_add_epi32(a7)+(float)_mm512_reduce_add_epi32(a8)+(float)_mm512_reduce_add_epi32(a9)+(float)_mm512_reduce_add_epi32(a10)+(float)_mm512_reduce_add_epi32(a11);}
static void*th(void*v){A*a=v;pin(a->id);
  size_t per=a->bytes/a->nt/4096*4096;char*p=a->buf?a->buf+per*a->id:0;
  if(a->kind==0||a->kind==1)for(size_t i=0;i<per;i+=64)*(int*)(p+i)=i; // first touch by own thread
  long it=50000000;
  if(a->kind<2)a->sink=rd(p,per,a->kind);
  else if(a->kind==2)a->sink=fma32(it/10);else if(a->kind==3)a->sink=fbf(it/10);else a->sink=fi8(it/10);
  pthread_barrier_wait(&bar);a->t0=now();
  if(a->kind<2){for(int r=0;r<a->reps;r++)a->sink+=rd(p,per,a->kind);a->work=(double)per*a->reps;}
  else if(a->kind==2){a->sink=fma32(it);a->work=(double)it*N*32;}
  else if(a->kind==3){a->sink=fbf(it);a->work=(double)it*N*64;}
  else {a->sink=fi8(it);a->work=(double)it*N*128;}
  a->t1=now();return 0;}
static double run(int kind,int nt,size_t bytes,int reps,char*buf){
  pthread_t t[64];A a[64];pthread_barrier_init(&bar,0,nt);
  for(int i=0;i<nt;i++){memset(&a[i],0,sizeof(A));a[i].id=i;a[i].nt=nt;a[i].kind=kind;a[i].bytes=bytes;a[i].reps=reps;a[i].buf=buf;pthread_create(&t[i],0,th,&a[i]);}
  double lo=1e30,hi=0,w=0;for(int i=0;i<nt;i++){pthread_join(t[i],0);if(a[i].t0<lo)lo=a[i].t0;if(a[i].t1>hi)hi=a[i].t1;w+=a[i].work;}
  return w/(hi-lo)*1e-9;}
int main(int c,char**v){ // peak KIND NT KIB REPS THP -> one number (G/s).  KIND 0 read 1 read+prefetch 2 f32 fma 3 bf16 4 int8
  int kind=atoi(v[1]),nt=atoi(v[2]);size_t by=c>3?(size_t)atol(v[3])<<10:0;int reps=c>4?atoi(v[4]):1,thp=c>5?atoi(v[5]):1;char*b=0;
  if(kind<2){b=mmap(0,by+(2<<20),PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);b=(char*)(((uintptr_t)b+(2<<20)-1)&~(uintptr_t)((2<<20)-1));if(thp)madvise(b,by,MADV_HUGEPAGE);}
  printf("%.3f\n",run(kind,nt,by,reps,b));}
