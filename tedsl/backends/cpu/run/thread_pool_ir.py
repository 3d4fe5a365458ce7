"""The thread pool in LLVM IR: persistent workers that spin briefly, then sleep.

One job at a time.  The caller opens a job, takes part in it and closes it; a worker that comes
before the closing joins by adding one to `ticket` and leaves by subtracting one, so nobody waits
for a worker that is still asleep. Work is claimed in ranges from `counter` by the functions that
the pool runs.  A caller that finds the pool busy runs its job alone.
"""

RUNTIME = """
target triple = "$TRIPLE"

@mutex = internal global [128 x i8] zeroinitializer, align 64
@wake = internal global [128 x i8] zeroinitializer, align 64
@threads = internal global [256 x i64] zeroinitializer, align 64
@wanted = internal global i64 1
@started = internal global i64 0
@busy = internal global i64 0, align 64
@generation = internal global i64 0, align 64
@sleepers = internal global i64 0, align 64
@stop = internal global i64 0
@ticket = internal global i64 0, align 64
@counter = internal global i64 0, align 64
@job = internal global ptr null, align 64
@context = internal global ptr null
@total = internal global i64 0
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

define internal ptr @worker(ptr %unused) {
entry:
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
  %n = load i64, ptr @total
  %s = load i64, ptr @step
  call void %f(ptr %c, ptr @counter, i64 %n, i64 %s)
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
  %r = call i32 @pthread_create(ptr %at, ptr null, ptr @worker, ptr null)
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
  %wanted = load atomic i64, ptr @wanted seq_cst, align 8
  %one = icmp slt i64 %n, 2
  %lone = icmp slt i64 %wanted, 2
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
  %missing = icmp eq i64 %have, 0
  br i1 %missing, label %begin, label %publish
begin:
  call void @launch(i64 %wanted)
  br label %publish
publish:
  %pieces = shl i64 %wanted, 2
  %per = sdiv i64 %n, %pieces
  %small = icmp slt i64 %per, 1
  %step = select i1 %small, i64 1, i64 %per
  store ptr %f, ptr @job
  store ptr %c, ptr @context
  store i64 %n, ptr @total
  store i64 %step, ptr @step
  store atomic i64 0, ptr @counter seq_cst, align 8
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
  call void %f(ptr %c, ptr @counter, i64 %n, i64 %step)
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
  store atomic i64 0, ptr @started seq_cst, align 8
  store atomic i64 0, ptr @stop seq_cst, align 8
  store atomic i64 0, ptr @busy seq_cst, align 8
  store atomic i64 0, ptr @sleepers seq_cst, align 8
  store atomic i64 0, ptr @ticket seq_cst, align 8
  ret void
}
"""
