/* Threads that run one function together: a team, its barrier, and how work is divided.

   A team is started for one call and ends with it: no pool and no global state, so that independent calls can run at the
   same time, each with its own number of threads. */

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum { SPINS = 4000 };                            /* about 100 µs at a barrier; then the thread sleeps */

typedef struct {
    int64_t count;
    atomic_llong arrived, generation;             /* generation: how often all threads have met */
    pthread_mutex_t lock;
    pthread_cond_t met;
} Team;

typedef struct {                                  /* one thread of a team */
    Team *team;
    int64_t index;
} Thread;

typedef void (*TeamFunction)(const Thread *thread, void *context);

static inline void pause_processor(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Waits until all threads of the team are here; what each has written before, all can read after. */
static void barrier(const Thread *thread) {
    Team *team = thread->team;
    if (team->count == 1) return;
    const long long generation = atomic_load(&team->generation);
    if (atomic_fetch_add(&team->arrived, 1) + 1 == team->count) {
        atomic_store(&team->arrived, 0);
        pthread_mutex_lock(&team->lock);
        atomic_store(&team->generation, generation + 1);
        pthread_cond_broadcast(&team->met);
        pthread_mutex_unlock(&team->lock);
        return;
    }
    for (int spin = 0; spin < SPINS; spin++) {
        if (atomic_load(&team->generation) != generation) return;
        pause_processor();
    }
    pthread_mutex_lock(&team->lock);
    while (atomic_load(&team->generation) == generation) pthread_cond_wait(&team->met, &team->lock);
    pthread_mutex_unlock(&team->lock);
}

typedef struct {
    Thread thread;
    TeamFunction function;
    void *context;
    pthread_t handle;
} Member;

static void *run_member(void *argument) {
    Member *member = argument;
    pthread_mutex_lock(&member->thread.team->lock); /* until the team is complete and its count is known */
    pthread_mutex_unlock(&member->thread.team->lock);
    member->function(&member->thread, member->context);
    return NULL;
}

/* Calls `function` in so many threads, the caller's among them; fewer if the system does not start more. */
static void run_team(int64_t threads, TeamFunction function, void *context) {
    enum { MOST = 256 };
    Team team = {.count = 1, .lock = PTHREAD_MUTEX_INITIALIZER, .met = PTHREAD_COND_INITIALIZER};
    Member members[MOST];
    pthread_mutex_lock(&team.lock);
    for (; team.count < threads && team.count < MOST; team.count++) {
        Member *member = &members[team.count];
        *member = (Member){{&team, team.count}, function, context, 0};
        if (pthread_create(&member->handle, NULL, run_member, member)) break;
    }
    pthread_mutex_unlock(&team.lock);
    const Thread caller = {&team, 0};
    function(&caller, context);
    for (int64_t i = 1; i < team.count; i++) pthread_join(members[i].handle, NULL);
}

/* This thread's part [first, last) of `total` work items. */
static void partition(const Thread *thread, int64_t total, int64_t *first, int64_t *last) {
    *first = total * thread->index / thread->team->count;
    *last = total * (thread->index + 1) / thread->team->count;
}
