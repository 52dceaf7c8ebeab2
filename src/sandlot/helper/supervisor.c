/* The process that stands between the helper and one command.
 *
 * It is a subreaper, so that whatever the command starts stays its descendant, daemons
 * included. It reports to the helper until no descendant is left. Then it waits for another
 * order, because to fork and to end one takes a fifth of the time that a short command takes.
 */
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { ORDER_HEADER = 16, MAX_SENT_ORDER = 64 * 1024, MORE_LIKELY_OOM = 500 };

static const char *const DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin";

static int report_fd;
static int helper_oom_score;

void supervisor_init(int fd)
{
	report_fd = fd;
	FILE *file = fopen("/proc/self/oom_score_adj", "re");
	if (file) {
		if (fscanf(file, "%d", &helper_oom_score) != 1)
			helper_oom_score = 0;
		fclose(file);
	}
}

/* ------------------------------------------------------------------ the order */

bool order_is_well_formed(const uint8_t *body, size_t size)
{
	if (size < ORDER_HEADER + 1 || body[size - 1] != '\0')
		return false;
	uint32_t fds = get32(body + 4), argc = get32(body + 8), envc = get32(body + 12);
	if (fds != 0 && fds != 3)
		return false;
	const uint8_t *end = body + size, *s = body + ORDER_HEADER;
	uint64_t strings = 0, expected = 1 + (uint64_t)argc + envc;
	for (; s < end; s = (const uint8_t *)memchr(s, '\0', (size_t)(end - s)) + 1)
		if (strings++ > argc && (*s == '\0' || *s == '='))
			return false;
	return strings == expected;
}

uint32_t order_flags(const struct order *order)
{
	return get32(order->body);
}

static uint32_t order_argc(const struct order *order)
{
	return get32(order->body + 8);
}

static uint32_t order_envc(const struct order *order)
{
	return get32(order->body + 12);
}

static const char *after(const char *string)
{
	return string + strlen(string) + 1;
}

static const char *order_cwd(const struct order *order)
{
	return (const char *)order->body + ORDER_HEADER;
}

/* Returns the arguments' bytes, one NUL-ended string after the other. */
const char *order_argv(const struct order *order, size_t *size)
{
	const char *argv = after(order_cwd(order)), *end = argv;
	for (uint32_t i = order_argc(order); i; i--)
		end = after(end);
	*size = (size_t)(end - argv);
	return argv;
}

/* ---------------------------------------------------------- the environment */

/* Finds variables by name, in a table of open addressing that is never full. */
struct environment {
	char **variables;
	size_t count;
	uint32_t *slots; /* 1 + index of a variable; 0 is free */
	size_t mask;
};

static size_t name_length(const char *variable)
{
	return strcspn(variable, "=");
}

static uint32_t *find_slot(struct environment *env, const char *variable)
{
	size_t length = name_length(variable);
	uint32_t hash = 2166136261u;
	for (size_t i = 0; i < length; i++)
		hash = (hash ^ (uint8_t)variable[i]) * 16777619u;
	for (size_t i = hash & env->mask;; i = (i + 1) & env->mask) {
		if (!env->slots[i])
			return &env->slots[i];
		const char *other = env->variables[env->slots[i] - 1];
		if (name_length(other) == length && !memcmp(other, variable, length))
			return &env->slots[i];
	}
}

/* An entry without "=" stays in its slot until compact(): it still hides its name's past. */
static void set_variable(struct environment *env, char *variable)
{
	uint32_t *slot = find_slot(env, variable);
	if (*slot) {
		env->variables[*slot - 1] = variable;
		return;
	}
	env->variables[env->count++] = variable;
	*slot = (uint32_t)env->count;
}

static void compact(struct environment *env)
{
	size_t kept = 0;
	for (size_t i = 0; i < env->count; i++)
		if (strchr(env->variables[i], '='))
			env->variables[kept++] = env->variables[i];
	env->variables[kept] = NULL;
}

/* Returns the helper's environment with the order's merged over it. */
static char **merged_environment(const char *overlay, uint32_t overlay_count)
{
	size_t most = overlay_count;
	for (char **variable = environ; *variable; variable++)
		most++;
	size_t slots = 64;
	while (slots < 2 * most)
		slots *= 2;
	struct environment env = {
		.variables = need_memory(calloc(most + 1, sizeof(char *))),
		.slots = need_memory(calloc(slots, sizeof(uint32_t))),
		.mask = slots - 1,
	};
	for (char **variable = environ; *variable; variable++)
		set_variable(&env, *variable);
	for (; overlay_count; overlay_count--, overlay = after(overlay))
		set_variable(&env, (char *)overlay);
	compact(&env);
	free(env.slots);
	return env.variables;
}

static const char *search_path(char *const *env)
{
	for (; *env; env++)
		if (!strncmp(*env, "PATH=", 5))
			return *env + 5;
	return DEFAULT_PATH;
}

/* ----------------------------------------------------------------- the leader */

struct launch {
	const struct order *order;
	char **argv, **env;
	volatile int error;
	volatile enum stage stage;
};

/* Replaces this process by the first program of this name on the path; returns an errno. */
static int exec_on_path(char *const *argv, char *const *env)
{
	const char *name = argv[0];
	if (strchr(name, '/') || !*name) {
		execve(name, argv, env);
		return errno;
	}
	int error = ENOENT;
	for (const char *dir = search_path(env);;) {
		char path[PATH_MAX];
		int length = (int)strcspn(dir, ":");
		int size = snprintf(path, sizeof path, "%.*s%s%s", length, dir, length ? "/" : "",
				    name);
		if (size < (int)sizeof path) {
			execve(path, argv, env);
			if (errno != ENOENT && errno != ENOTDIR && error == ENOENT)
				error = errno;
		}
		if (!dir[length])
			return error;
		dir += length + 1;
	}
}

static void fail_launch(struct launch *launch, enum stage stage, int error)
{
	launch->stage = stage;
	launch->error = error;
	_exit(127);
}

/* Becomes the command. Runs in memory shared with the supervisor, after a vfork. */
static void become_leader(struct launch *launch)
{
	const struct order *order = launch->order;
	setsid();
	for (int fd = 0; fd < 3; fd++)
		if (order->fds[fd] >= 0 && dup2(order->fds[fd], fd) < 0)
			fail_launch(launch, STAGE_SETUP, errno);
	if (order->fds[0] < 0 && (dup2(STDIN_FILENO, 1) < 0 || dup2(STDIN_FILENO, 2) < 0))
		fail_launch(launch, STAGE_SETUP, errno);
	if (order_flags(order) & START_PTY && ioctl(STDIN_FILENO, TIOCSCTTY, 0))
		fail_launch(launch, STAGE_SETUP, errno);
	if (*order_cwd(order) && chdir(order_cwd(order)))
		fail_launch(launch, STAGE_CHDIR, errno);
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	fail_launch(launch, STAGE_EXEC, exec_on_path(launch->argv, launch->env));
}

static pid_t vfork_leader(struct launch *launch)
{
	pid_t pid = vfork();
	if (pid == 0)
		become_leader(launch);
	return pid;
}

/* Returns the leader's pid, running its program already; or -1 with the reason in `launch`. */
static pid_t launch_leader(struct launch *launch)
{
	const struct order *order = launch->order;
	uint32_t argc = order_argc(order);
	const char *string = after(order_cwd(order));
	launch->argv = need_memory(calloc((size_t)argc + 1, sizeof(char *)));
	for (uint32_t i = 0; i < argc; i++, string = after(string))
		launch->argv[i] = (char *)string;
	launch->env = merged_environment(string, order_envc(order));
	launch->stage = STAGE_EXEC;
	launch->error = argc ? 0 : EINVAL;
	pid_t pid = launch->error ? -1 : vfork_leader(launch);
	if (pid > 0 && launch->error) {
		waitpid(pid, NULL, 0);
		pid = -1;
	} else if (pid < 0 && !launch->error) {
		launch->stage = STAGE_SETUP;
		launch->error = errno;
	}
	free(launch->argv);
	free(launch->env);
	return pid;
}

/* ------------------------------------------------------------- the supervisor */

static pid_t helper_pid;

static void report(const struct report *report)
{
	while (write(report_fd, report, sizeof *report) < 0 && errno == EINTR)
		;
}

static uint64_t microseconds(struct timeval t)
{
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_usec;
}

/* Reaps what has ended; fills in the leader's end if it was among them. Returns whether any
 * descendant is left. */
static bool reap(pid_t leader, struct report *end)
{
	int status;
	struct rusage usage;
	pid_t pid;
	while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
		if (pid != leader || end->pid)
			continue;
		end->pid = (uint32_t)pid;
		end->status = (uint32_t)status;
		end->user_us = microseconds(usage.ru_utime);
		end->system_us = microseconds(usage.ru_stime);
		end->peak_kib = (uint64_t)usage.ru_maxrss;
	}
	return pid == 0;
}

/* Waits for a child to end, or for the helper's death; when that has come, a millisecond. */
static void wait_for_signal(bool orphaned)
{
	sigset_t awaited;
	sigemptyset(&awaited);
	sigaddset(&awaited, SIGCHLD);
	sigaddset(&awaited, SIGTERM);
	struct timespec moment = {.tv_nsec = 1000000};
	sigtimedwait(&awaited, NULL, orphaned ? &moment : NULL);
}

/* Stays until no descendant is left. */
static void watch(struct report *end, pid_t leader)
{
	bool reported = false;
	for (;;) {
		bool left = reap(leader, end);
		if (end->pid && !reported) {
			end->last = !left;
			report(end);
			reported = true;
		} else if (!left) {
			end->kind = REPORT_GONE;
			report(end);
		}
		if (!left)
			return;
		bool orphaned = getppid() != helper_pid;
		if (orphaned)
			tree_signal(getpid(), SIGKILL, NULL);
		wait_for_signal(orphaned);
	}
}

static void supervise(const struct order *order)
{
	struct launch launch = {.order = order};
	pid_t leader = launch_leader(&launch);
	for (int i = 0; i < 3; i++)
		if (order->fds[i] >= 0)
			close(order->fds[i]);
	if (leader < 0) {
		report(&(struct report){
			.serial = order->serial,
			.kind = REPORT_FAILED,
			.status = (uint32_t)launch.error,
			.stage = launch.stage,
		});
		return;
	}
	/* A short command may have ended already: then its end says all, in one report. */
	struct report end = {.serial = order->serial, .kind = REPORT_EXITED};
	reap(leader, &end);
	if (!end.pid)
		report(&(struct report){
			.serial = order->serial,
			.kind = REPORT_STARTED,
			.pid = (uint32_t)leader,
		});
	watch(&end, leader);
}

static void close_except(int keep[], size_t count) /* ascending, none below 3 */
{
	unsigned from = 3;
	for (size_t i = 0; i < count; i++) {
		if (keep[i] < 0)
			continue;
		if ((unsigned)keep[i] > from)
			close_fds(from, (unsigned)keep[i] - 1);
		from = (unsigned)keep[i] + 1;
	}
	close_fds(from, ~0u);
}

/* Lets the kernel, when memory runs out, take the command before the helper: what a supervisor
 * says of itself is inherited. A hint, so that a refusal does not matter. */
static void offer_to_oom_killer(void)
{
	char text[16];
	int score = helper_oom_score + MORE_LIKELY_OOM;
	int size = snprintf(text, sizeof text, "%d", score < 1000 ? score : 1000);
	prctl(PR_SET_DUMPABLE, 1); /* else only root may write to it */
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	prctl(PR_SET_DUMPABLE, 0);
	if (fd < 0)
		return;
	if (write(fd, text, (size_t)size) < 0)
		errno = 0;
	close(fd);
}

/* What each supervisor does first. The helper's other descriptors must not live on in it: its
 * lock says that the helper lives, and its connections end when it does. */
static void become_supervisor(const int fds[3], int orders)
{
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != helper_pid)
		_exit(1);
	int keep[] = {fds[0], fds[1], fds[2], report_fd, orders};
	size_t count = sizeof keep / sizeof *keep;
	for (size_t i = 1; i < count; i++)
		for (size_t j = i; j && keep[j - 1] > keep[j]; j--) {
			int swap = keep[j];
			keep[j] = keep[j - 1];
			keep[j - 1] = swap;
		}
	close_except(keep, count);
	offer_to_oom_killer();
}

/* ------------------------------------------------------------------ its orders */

/* Reads one order and carries it out. Returns false when the helper wants no more of this. */
static bool serve(int orders)
{
	static uint8_t bytes[sizeof(uint64_t) + MAX_SENT_ORDER];
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(3 * sizeof(int))];
	} control;
	struct iovec space = {bytes, sizeof bytes};
	struct msghdr message = {
		.msg_iov = &space,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof control.bytes,
	};
	ssize_t size = recvmsg(orders, &message, MSG_CMSG_CLOEXEC);
	if (size <= (ssize_t)sizeof(uint64_t))
		return false;
	struct order order = {
		.body = bytes + sizeof(uint64_t),
		.size = (size_t)size - sizeof(uint64_t),
		.fds = {-1, -1, -1},
	};
	memcpy(&order.serial, bytes, sizeof order.serial);
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);
	if (c)
		memcpy(order.fds, CMSG_DATA(c), sizeof order.fds);
	supervise(&order);
	return true;
}

/* Forks a supervisor, for one order or, without that, to be given orders. Returns false if it
 * can't. */
bool supervisor_fork(struct supervisor *supervisor, const struct order *order)
{
	static const int no_fds[3] = {-1, -1, -1};
	int orders[2] = {-1, -1};
	if (!order && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, orders))
		return false;
	helper_pid = getpid();
	pid_t pid = fork();
	if (pid == 0) {
		become_supervisor(order ? order->fds : no_fds, orders[1]);
		if (order)
			supervise(order);
		else
			while (serve(orders[1]))
				;
		_exit(0);
	}
	int error = errno;
	if (orders[1] >= 0)
		close(orders[1]);
	if (pid < 0 && orders[0] >= 0) {
		close(orders[0]);
		orders[0] = -1;
	}
	errno = error;
	*supervisor = (struct supervisor){pid, orders[0]};
	return pid > 0;
}

/* Hands an order to an idle supervisor; returns false if it is too large, or that one unwell.
 * Never waits: somebody may have stopped it. */
bool supervisor_give(const struct supervisor *idle, const struct order *order)
{
	if (order->size > MAX_SENT_ORDER)
		return false;
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(3 * sizeof(int))];
	} control = {0};
	struct iovec parts[] = {
		{(void *)&order->serial, sizeof order->serial},
		{(void *)order->body, order->size},
	};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
	if (order->fds[0] >= 0) {
		message.msg_control = control.bytes;
		message.msg_controllen = sizeof control.bytes;
		struct cmsghdr *c = CMSG_FIRSTHDR(&message);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof order->fds);
		memcpy(CMSG_DATA(c), order->fds, sizeof order->fds);
	}
	return sendmsg(idle->orders, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}
