/* Threads that run one function together: a team, its barrier, and how work is divided.

   There is no global state: a call brings a pool of waiting threads along, or starts threads of its own that end with
   it. So independent calls can run at the same time, each with its own number of threads. A pool may also stand for the
   threads of a program's OpenMP runtime. */

#include <pthread.h>
#include <stdatomic.h>

enum { SPINS = 4000 };                            /* about 100 µs of waiting; then the thread sleeps */
enum { MAX_THREADS = 256 };

typedef struct {                                  /* something that happens again and again */
    atomic_llong count;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} Event;

typedef struct {
    int64_t count;
    atomic_llong arrived;
    Event met;                                    /* all threads are at the barrier */
} Team;

typedef struct {                                  /* one thread of a team */
    Team *team;
    int64_t index;
} Thread;

typedef void (*TeamFunction)(const Thread *thread, void *context);

struct HeedPool {
    HeedOpenMP openmp;                            /* parallel: NULL: the pool has threads of its own */
    int64_t count;                                /* the caller's thread included */
    pthread_t handles[MAX_THREADS];
    atomic_llong starting, running;               /* index of the next thread to start; threads that still work */
    Event called, done;
    pthread_mutex_t in_use;
    Team *team;                                   /* of the current call; NULL: the pool is closed */
    TeamFunction function;
    void *context;
};

static void event_init(Event *event) {
    atomic_init(&event->count, 0);
    pthread_mutex_init(&event->lock, NULL);
    pthread_cond_init(&event->changed, NULL);
}

static void event_end(Event *event) {
    pthread_mutex_destroy(&event->lock);
    pthread_cond_destroy(&event->changed);
}

static void event_happen(Event *event) {
    pthread_mutex_lock(&event->lock);
    atomic_fetch_add(&event->count, 1);
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->lock);
}

static inline void pause_processor(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Waits until the event has happened more than `before` times. */
static void event_wait(Event *event, long long before) {
    for (int spin = 0; spin < SPINS; spin++) {
        if (atomic_load(&event->count) != before) return;
        pause_processor();
    }
    pthread_mutex_lock(&event->lock);
    while (atomic_load(&event->count) == before) pthread_cond_wait(&event->changed, &event->lock);
    pthread_mutex_unlock(&event->lock);
}

/* Waits until all threads of the team are here; what each has written before, all can read after. */
static inline void barrier(const Thread *thread) {
    Team *team = thread->team;
    if (team->count == 1) return;
    const long long before = atomic_load(&team->met.count);
    if (atomic_fetch_add(&team->arrived, 1) + 1 == team->count) {
        atomic_store(&team->arrived, 0);
        event_happen(&team->met);
    } else {
        event_wait(&team->met, before);
    }
}

/* A waiting thread: takes part in each call until the pool is closed. */
static void *wait_for_calls(void *argument) {
    HeedPool *pool = argument;
    const int64_t index = atomic_fetch_add(&pool->starting, 1);
    for (long long calls = 0;; calls++) {
        event_wait(&pool->called, calls);
        Team *team = pool->team;
        const Thread thread = {team, index};
        if (team && index < team->count) pool->function(&thread, pool->context);
        if (atomic_fetch_sub(&pool->running, 1) == 1) event_happen(&pool->done);
        if (!team) return NULL;
    }
}

/* The threads of the pool run `function` together, the caller's among them; team: NULL closes the pool. */
static void call_pool(HeedPool *pool, Team *team, TeamFunction function, void *context) {
    const Thread caller = {team, 0};
    const long long before = atomic_load(&pool->done.count);
    pool->team = team, pool->function = function, pool->context = context;
    atomic_store(&pool->running, pool->count - 1);
    event_happen(&pool->called);
    if (team) function(&caller, context);
    event_wait(&pool->done, before);
}

/* Starts the threads of a pool, fewer if the system does not start more. */
static void start_pool(HeedPool *pool, int64_t threads) {
    pool->openmp = (HeedOpenMP){NULL, NULL, NULL};
    pool->count = 1;
    atomic_init(&pool->starting, 1);
    event_init(&pool->called);
    event_init(&pool->done);
    pthread_mutex_init(&pool->in_use, NULL);
    while (pool->count < threads && pool->count < MAX_THREADS
           && !pthread_create(&pool->handles[pool->count], NULL, wait_for_calls, pool))
        pool->count++;
}

static void end_pool(HeedPool *pool) {
    if (pool->count > 1) call_pool(pool, NULL, NULL, NULL);
    for (int64_t i = 1; i < pool->count; i++) pthread_join(pool->handles[i], NULL);
    event_end(&pool->called);
    event_end(&pool->done);
    pthread_mutex_destroy(&pool->in_use);
}

typedef struct {                                  /* a call in the threads of an OpenMP runtime */
    const HeedOpenMP *openmp;
    Team *team;
    TeamFunction function;
    void *context;
} OpenMPCall;

/* A thread's part. With fewer threads than asked for, which the runtime may give, its first one does all the work. */
static void run_openmp_thread(void *argument) {
    const OpenMPCall *call = argument;
    Team alone = {.count = 1};
    const Thread thread = {call->team, call->openmp->thread_index()}, only = {&alone, 0};
    if (call->openmp->thread_count() == call->team->count)
        call->function(&thread, call->context);
    else if (thread.index == 0)
        call->function(&only, call->context);
}

/* Calls `function` in so many threads: of the pool, unless there is none or another call uses it. */
static inline void run_team(HeedPool *pool, int64_t threads, TeamFunction function, void *context) {
    Team team = {.count = 1};
    const Thread caller = {&team, 0};
    HeedPool own;
    if (threads <= 1) {
        function(&caller, context);
        return;
    }
    event_init(&team.met);
    if (pool && pool->openmp.parallel) {
        team.count = threads;
        OpenMPCall call = {&pool->openmp, &team, function, context};
        pool->openmp.parallel(run_openmp_thread, &call, (unsigned)threads, 0);
        event_end(&team.met);
        return;
    }
    const int shared = pool && pool->count > 1 && !pthread_mutex_trylock(&pool->in_use);
    if (!shared) start_pool(pool = &own, threads);
    team.count = threads < pool->count ? threads : pool->count;
    if (team.count > 1)
        call_pool(pool, &team, function, context);
    else
        function(&caller, context);
    event_end(&team.met);
    if (shared)
        pthread_mutex_unlock(&pool->in_use);
    else
        end_pool(pool);
}

/* This thread's part [first, last) of `total` work items. */
static inline void partition(const Thread *thread, int64_t total, int64_t *first, int64_t *last) {
    *first = total * thread->index / thread->team->count;
    *last = total * (thread->index + 1) / thread->team->count;
}
