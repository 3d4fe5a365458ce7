"""The threads of parallel loops, in LLVM IR: a pool of persistent workers that spin, then sleep, or
the team of an OpenMP library that the process has already.

One job at a time.  The caller opens a job, takes part in it and closes it; a worker that comes
before the closing joins by adding one to `ticket` and leaves by subtracting one, so nobody waits
for a worker that is still asleep.  A caller that finds the pool busy runs its job alone.

Each thread has a share of the iterations, the same one in every job of as many, so that what it
read or wrote last time is in its own caches.  The functions that are run claim pieces of a share
from its cell; who is done with his own goes on to those of the next threads (Acar, Blelloch and
Blumofe, "The Data Locality of Work Stealing", SPAA 2000).

With an OpenMP library (`team`: its `GOMP_parallel`) its threads do the same: two pools whose
threads wait for work by looking for it take the processors from each other.  But a team waits for
all of its members, also for one whose processor another process has.  Where the caller waited long
for the others, twice in a row, the next jobs are for the own pool: 64 of them, then one for the
team again, twice as many where that is as late.
"""

RUNTIME = """
target triple = "$TRIPLE"

@mutex = internal global [128 x i8] zeroinitializer, align 64
@wake = internal global [128 x i8] zeroinitializer, align 64
@threads = internal global [256 x i64] zeroinitializer, align 64
@team = internal global ptr null
@member = internal global ptr null
@most = internal global ptr null
@finished = internal global i64 0
@late = internal global i64 0           ; jobs in a row that the caller waited long for
@left = internal global i64 0           ; jobs before the team has one again
@pause = internal global i64 64
@wanted = internal global i64 1
@started = internal global i64 0
@busy = internal global i64 0, align 64
@generation = internal global i64 0, align 64
@sleepers = internal global i64 0, align 64
@stop = internal global i64 0
@ticket = internal global i64 0, align 64
@cells = internal global [256 x [8 x i64]] zeroinitializer, align 64 ; of a share: next, end
@shares = internal global i64 1, align 64
@job = internal global ptr null, align 64
@context = internal global ptr null
@step = internal global i64 1

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)

define internal void @take(i64 %self, ptr %f, ptr %c) {
entry:
  %count = load i64, ptr @shares
  %step = load i64, ptr @step
  %own = urem i64 %self, %count
  br label %loop
loop:                                   ; the own share, then those of the next threads
  %i = phi i64 [ 0, %entry ], [ %i2, %next ]
  %sum = add i64 %own, %i
  %past = icmp sge i64 %sum, %count
  %rest = sub i64 %sum, %count
  %of = select i1 %past, i64 %rest, i64 %sum
  %cell = getelementptr [8 x i64], ptr @cells, i64 %of
  %last = getelementptr i64, ptr %cell, i64 1
  %at = load atomic i64, ptr %cell monotonic, align 8
  %end = load i64, ptr %last
  %some = icmp slt i64 %at, %end
  br i1 %some, label %claim, label %next
claim:
  call void %f(ptr %c, ptr %cell, i64 %end, i64 %step)
  br label %next
next:
  %i2 = add i64 %i, 1
  %more = icmp slt i64 %i2, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}

define internal i64 @now() {            ; nanoseconds
  %at = alloca [2 x i64], align 8
  call i32 @clock_gettime(i32 1, ptr %at)
  %seconds = load i64, ptr %at
  %more = getelementptr i64, ptr %at, i64 1
  %rest = load i64, ptr %more
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %rest
  ret i64 %sum
}

define internal void @member_of_team(ptr %unused) {
entry:
  %number = load ptr, ptr @member
  %me = call i32 %number()
  %self = sext i32 %me to i64
  %f = load ptr, ptr @job
  %c = load ptr, ptr @context
  call void @take(i64 %self, ptr %f, ptr %c)
  %caller = icmp eq i64 %self, 0
  br i1 %caller, label %note, label %done
note:
  %at = call i64 @now()
  store i64 %at, ptr @finished
  br label %done
done:
  ret void
}

define internal void @judge() {         ; did the caller wait long for the others?
entry:
  %now = call i64 @now()
  %then = load i64, ptr @finished
  %waited = sub i64 %now, %then
  %long = icmp sgt i64 %waited, $PATIENCE
  br i1 %long, label %slow, label %good
good:
  store i64 0, ptr @late
  store i64 64, ptr @pause
  ret void
slow:
  %before = load i64, ptr @late
  store i64 1, ptr @late
  %again = icmp sgt i64 %before, 0
  br i1 %again, label %apart, label %done
apart:
  %jobs = load i64, ptr @pause
  store i64 %jobs, ptr @left
  %twice = shl i64 %jobs, 1
  %more = icmp slt i64 %twice, 4096
  %next = select i1 %more, i64 %twice, i64 4096
  store i64 %next, ptr @pause
  br label %done
done:
  ret void
}

define internal ptr @worker(ptr %number) {
entry:
  %self = ptrtoint ptr %number to i64
  br label %start
start:                                  ; wait for a generation other than the last one seen
  %seen = phi i64 [ 0, %entry ], [ %now, %finish ]
  br label %spin
spin:
  %i = phi i64 [ 0, %start ], [ %i2, %again ]
  %g = load atomic i64, ptr @generation seq_cst, align 8
  %new = icmp ne i64 %g, %seen
  br i1 %new, label %awake, label %check
check:
  %halt = load atomic i64, ptr @stop seq_cst, align 8
  %h = icmp ne i64 %halt, 0
  br i1 %h, label %leave, label %again
again:
  $PAUSE
  %i2 = add i64 %i, 1
  %tired = icmp sgt i64 %i2, $SPINS
  br i1 %tired, label %sleep, label %spin
sleep:
  call i32 @pthread_mutex_lock(ptr @mutex)
  atomicrmw add ptr @sleepers, i64 1 seq_cst
  br label %doze
doze:
  %g3 = load atomic i64, ptr @generation seq_cst, align 8
  %halt3 = load atomic i64, ptr @stop seq_cst, align 8
  %same = icmp eq i64 %g3, %seen
  %run3 = icmp eq i64 %halt3, 0
  %wait = and i1 %same, %run3
  br i1 %wait, label %wait_block, label %rise
wait_block:
  call i32 @pthread_cond_wait(ptr @wake, ptr @mutex)
  br label %doze
rise:
  atomicrmw sub ptr @sleepers, i64 1 seq_cst
  call i32 @pthread_mutex_unlock(ptr @mutex)
  br i1 %run3, label %awake, label %leave
awake:
  %now = load atomic i64, ptr @generation seq_cst, align 8
  br label %join
join:                                   ; take part if the job is still open
  %t = load atomic i64, ptr @ticket seq_cst, align 8
  %bit = and i64 %t, 4294967296
  %open = icmp ne i64 %bit, 0
  br i1 %open, label %enter, label %finish
enter:
  %t2 = add i64 %t, 1
  %pair = cmpxchg ptr @ticket, i64 %t, i64 %t2 seq_cst seq_cst
  %ok = extractvalue { i64, i1 } %pair, 1
  br i1 %ok, label %work, label %join
work:
  %f = load ptr, ptr @job
  %c = load ptr, ptr @context
  call void @take(i64 %self, ptr %f, ptr %c)
  atomicrmw sub ptr @ticket, i64 1 seq_cst
  br label %finish
finish:
  br label %start
leave:
  ret ptr null
}

define internal void @launch(i64 %count) {
entry:
  %all = alloca [128 x i8], align 16
  %old = alloca [128 x i8], align 16
  call i32 @pthread_mutex_init(ptr @mutex, ptr null)
  call i32 @pthread_cond_init(ptr @wake, ptr null)
  call i32 @sigfillset(ptr %all)
  call i32 @pthread_sigmask(i32 $SETMASK, ptr %all, ptr %old)
  br label %loop
loop:
  %i = phi i64 [ 1, %entry ], [ %i2, %made ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %make, label %done
make:
  %at = getelementptr i64, ptr @threads, i64 %i
  %number = inttoptr i64 %i to ptr
  %r = call i32 @pthread_create(ptr %at, ptr null, ptr @worker, ptr %number)
  %good = icmp eq i32 %r, 0
  br i1 %good, label %made, label %done
made:
  %i2 = add i64 %i, 1
  br label %loop
done:
  call i32 @pthread_sigmask(i32 $SETMASK, ptr %old, ptr null)
  store atomic i64 %i, ptr @started seq_cst, align 8
  ret void
}

define internal void @alone(ptr %f, ptr %c, i64 %n) {
  %counter = alloca i64
  store i64 0, ptr %counter
  call void %f(ptr %c, ptr %counter, i64 %n, i64 %n)
  ret void
}

define void @tedsl_parallel_for(ptr %f, ptr %c, i64 %n) {
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %several, label %done
several:
  %team = load atomic ptr, ptr @team seq_cst, align 8
  %single_pool = icmp eq ptr %team, null
  br i1 %single_pool, label %own, label %either
either:
  %left = load i64, ptr @left
  %resting = icmp sgt i64 %left, 0
  br i1 %resting, label %rest, label %shared
rest:
  %fewer = sub i64 %left, 1
  store i64 %fewer, ptr @left
  br label %own
own:
  %wanted = load atomic i64, ptr @wanted seq_cst, align 8
  br label %count
shared:
  %most = load ptr, ptr @most
  %members = call i32 %most()
  %wide = sext i32 %members to i64
  %above = icmp sgt i64 %wide, $MOST
  %limited = select i1 %above, i64 $MOST, i64 %wide
  br label %count
count:
  %threads = phi i64 [ %wanted, %own ], [ %limited, %shared ]
  %apart = phi i1 [ true, %own ], [ false, %shared ]
  %one = icmp slt i64 %n, 2
  %lone = icmp slt i64 %threads, 2
  %serial = or i1 %one, %lone
  br i1 %serial, label %single, label %lock
lock:
  %pair = cmpxchg ptr @busy, i64 0, i64 1 seq_cst seq_cst
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %ready, label %single
single:
  call void @alone(ptr %f, ptr %c, i64 %n)
  br label %done
ready:
  %have = load atomic i64, ptr @started seq_cst, align 8
  %none = icmp eq i64 %have, 0
  %missing = and i1 %none, %apart
  br i1 %missing, label %begin, label %publish
begin:
  call void @launch(i64 %threads)
  br label %publish
publish:
  %pieces = shl i64 %threads, 2
  %per = sdiv i64 %n, %pieces
  %small = icmp slt i64 %per, 1
  %step = select i1 %small, i64 1, i64 %per
  %few = icmp slt i64 %n, %threads
  %shares = select i1 %few, i64 %n, i64 %threads
  store ptr %f, ptr @job
  store ptr %c, ptr @context
  store i64 %step, ptr @step
  store i64 %shares, ptr @shares
  br label %deal
deal:
  %v = phi i64 [ 0, %publish ], [ %v2, %deal ]
  %low = phi i64 [ 0, %publish ], [ %high, %deal ]
  %v2 = add i64 %v, 1
  %scaled = mul i64 %n, %v2
  %high = sdiv i64 %scaled, %shares
  %cell = getelementptr [8 x i64], ptr @cells, i64 %v
  %last = getelementptr i64, ptr %cell, i64 1
  store atomic i64 %low, ptr %cell monotonic, align 8
  store i64 %high, ptr %last
  %dealt = icmp eq i64 %v2, %shares
  br i1 %dealt, label %opening, label %deal
opening:
  br i1 %apart, label %open, label %together
together:
  call void %team(ptr @member_of_team, ptr null, i32 0, i32 0)
  call void @judge()
  br label %close
open:
  store atomic i64 4294967296, ptr @ticket seq_cst, align 8
  atomicrmw add ptr @generation, i64 1 seq_cst
  %asleep = load atomic i64, ptr @sleepers seq_cst, align 8
  %any = icmp sgt i64 %asleep, 0
  br i1 %any, label %rouse, label %work
rouse:
  call i32 @pthread_mutex_lock(ptr @mutex)
  call i32 @pthread_cond_broadcast(ptr @wake)
  call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %work
work:
  call void @take(i64 0, ptr %f, ptr %c)
  atomicrmw and ptr @ticket, i64 4294967295 seq_cst
  br label %wait
wait:
  %i = phi i64 [ 0, %work ], [ %i2, %spun ], [ 0, %yield ]
  %t = load atomic i64, ptr @ticket seq_cst, align 8
  %empty = icmp eq i64 %t, 0
  br i1 %empty, label %close, label %patience
patience:
  %many = icmp sgt i64 %i, 500
  br i1 %many, label %yield, label %spun
spun:
  $PAUSE
  %i2 = add i64 %i, 1
  br label %wait
yield:
  call i32 @sched_yield()
  br label %wait
close:
  store atomic i64 0, ptr @busy seq_cst, align 8
  br label %done
done:
  ret void
}

define void @tedsl_pool_size(i64 %count) {
  store atomic i64 %count, ptr @wanted seq_cst, align 8
  ret void
}

define void @tedsl_pool_team(ptr %team, ptr %member, ptr %most) {
  store ptr %member, ptr @member
  store ptr %most, ptr @most
  store atomic ptr %team, ptr @team seq_cst, align 8
  ret void
}

define i64 @tedsl_pool_stop() {         ; 0 when another thread has the pool
entry:
  %pair = cmpxchg ptr @busy, i64 0, i64 1 seq_cst seq_cst
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %halt, label %refused
refused:
  ret i64 0
halt:
  %count = load atomic i64, ptr @started seq_cst, align 8
  store atomic i64 1, ptr @stop seq_cst, align 8
  %any = icmp sgt i64 %count, 1
  br i1 %any, label %rouse, label %done
rouse:
  call i32 @pthread_mutex_lock(ptr @mutex)
  call i32 @pthread_cond_broadcast(ptr @wake)
  call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %loop
loop:
  %i = phi i64 [ 1, %rouse ], [ %i2, %loop ]
  %at = getelementptr i64, ptr @threads, i64 %i
  %id = load i64, ptr %at
  call i32 @pthread_join(i64 %id, ptr null)
  %i2 = add i64 %i, 1
  %more = icmp slt i64 %i2, %count
  br i1 %more, label %loop, label %done
done:
  store atomic i64 0, ptr @started seq_cst, align 8
  store atomic i64 0, ptr @stop seq_cst, align 8
  store atomic i64 0, ptr @busy seq_cst, align 8
  ret i64 1
}

define void @tedsl_pool_forked() {      ; in a child process the workers do not exist
  store atomic ptr null, ptr @team seq_cst, align 8
  store atomic i64 0, ptr @started seq_cst, align 8
  store atomic i64 0, ptr @stop seq_cst, align 8
  store atomic i64 0, ptr @busy seq_cst, align 8
  store atomic i64 0, ptr @sleepers seq_cst, align 8
  store atomic i64 0, ptr @ticket seq_cst, align 8
  ret void
}
"""
