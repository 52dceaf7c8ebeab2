/* The commands that run, and who hears of them. */
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_IDLE = 4, IDLE_DELAY_MS = 3 };

struct watcher {
	struct watcher *next;
	struct connection *connection;
	uint32_t id;
};

struct command {
	struct command *next;
	uint64_t serial;
	struct supervisor supervisor; /* pid 0 once it is dead: its processes are ours then */
	pid_t leader;     /* 0 while starting */
	enum command_state state;
	uint32_t status; /* how the leader ended, or, while it is RUNNING, a dead supervisor */
	bool quiet, killed;
	struct watcher *watchers;
	uint64_t start_ms;
	size_t argv_size;
	char argv[];
};

static struct command *commands;

/* Supervisors that wait for orders. */
static struct supervisor idle[MAX_IDLE];
static size_t idle_count;
static uint64_t idle_due_ms;
static int reports;

/* Processes whose supervisor was killed may be left, as children of ours. */
static bool strays;
static unsigned stray_count;

/* ------------------------------------------------------------ finding and telling */

static struct command *find_by_id(const struct connection *connection, uint32_t id)
{
	for (struct command *command = commands; command; command = command->next)
		for (struct watcher *w = command->watchers; w; w = w->next)
			if (w->connection == connection && w->id == id)
				return command;
	return NULL;
}

static struct command *find_by_serial(uint64_t serial)
{
	for (struct command *command = commands; command; command = command->next)
		if (command->serial == serial)
			return command;
	return NULL;
}

/* A number may stand for two: a leader that has exited, and one that was given its pid. */
static struct command *find_by_leader(pid_t pid)
{
	struct command *found = NULL;
	for (struct command *command = commands; command; command = command->next)
		if (command->leader == pid && (!found || command->state == RUNNING))
			found = command;
	return found;
}

static void add_watcher(struct command *command, struct connection *connection, uint32_t id)
{
	struct watcher *watcher = need_memory(malloc(sizeof *watcher));
	*watcher = (struct watcher){command->watchers, connection, id};
	command->watchers = watcher;
}

static void tell(const struct command *command, enum frame_type type, const void *body,
		 size_t size)
{
	for (struct watcher *w = command->watchers; w; w = w->next)
		send_frame(w->connection, type, w->id, body, size);
}

static void tell_two(const struct command *command, enum frame_type type, uint32_t a,
		     uint32_t b)
{
	uint8_t body[8];
	put32(put32(body, a), b);
	tell(command, type, body, sizeof body);
}

static void tell_exited(struct command *command, uint32_t status, uint64_t user_us,
			uint64_t system_us, uint64_t peak_kib)
{
	uint8_t body[32];
	uint8_t *p = put32(put32(body, (uint32_t)command->leader), status);
	put64(put64(put64(p, user_us), system_us), peak_kib);
	command->state = LEADER_EXITED;
	command->status = status;
	tell(command, EXITED, body, sizeof body);
}

/* Keeps a supervisor for the next command, or lets it go. One that is being killed may have
 * said just before that it is done. */
static void dismiss_supervisor(const struct command *command)
{
	if (command->supervisor.orders < 0)
		return;
	bool fit = command->supervisor.pid && !command->killed && !shutting_down;
	if (fit && idle_count < MAX_IDLE)
		idle[idle_count++] = command->supervisor;
	else
		close(command->supervisor.orders);
}

static void remove_command(struct command *command)
{
	dismiss_supervisor(command);
	struct command **link = &commands;
	while (*link != command)
		link = &(*link)->next;
	*link = command->next;
	while (command->watchers) {
		struct watcher *watcher = command->watchers;
		command->watchers = watcher->next;
		free(watcher);
	}
	free(command);
}

static void end_command(struct command *command)
{
	if (command->state == STARTING) {
		tell_two(command, FAILED, EOWNERDEAD, STAGE_SETUP);
	} else {
		if (command->state == RUNNING) /* the supervisor could not say any more */
			tell_exited(command, command->status, 0, 0, 0);
		tell(command, GONE, NULL, 0);
	}
	remove_command(command);
}

void commands_forget(const struct connection *connection)
{
	for (struct command *command = commands; command; command = command->next)
		for (struct watcher **link = &command->watchers; *link;) {
			struct watcher *watcher = *link;
			if (watcher->connection == connection) {
				*link = watcher->next;
				free(watcher);
			} else {
				link = &watcher->next;
			}
		}
}

/* ------------------------------------------------------------------ requests */

static struct command *add_command(struct connection *from, uint32_t id,
				   const struct order *order)
{
	size_t size;
	const char *argv = order_argv(order, &size);
	if (size > MAX_LISTED_ARGV)
		size = MAX_LISTED_ARGV;
	struct command *command = need_memory(calloc(1, sizeof *command + size));
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	command->serial = order->serial;
	command->quiet = order_flags(order) & START_QUIET;
	command->start_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	command->argv_size = size;
	memcpy(command->argv, argv, size);
	add_watcher(command, from, id);
	command->next = commands;
	commands = command;
	return command;
}

static bool id_is_free(struct connection *from, uint32_t id)
{
	if (id && !find_by_id(from, id))
		return true;
	send_error(from, id, EEXIST, "this request id is 0 or in use");
	return false;
}

static void refuse_start(struct connection *from, uint32_t id, int error)
{
	uint8_t body[8];
	put32(put32(body, (uint32_t)error), STAGE_SETUP);
	send_frame(from, FAILED, id, body, sizeof body);
}

static bool supervise_order(struct command *command, const struct order *order)
{
	idle_due_ms = now_ms() + IDLE_DELAY_MS;
	if (idle_count && supervisor_give(&idle[idle_count - 1], order)) {
		command->supervisor = idle[--idle_count];
		kill(command->supervisor.pid, SIGCONT); /* a command may have stopped it */
		return true;
	}
	return supervisor_fork(&command->supervisor, order);
}

void command_start(struct connection *from, uint32_t id, const uint8_t *body, size_t size)
{
	static uint64_t serial;
	struct order order = {++serial, body, size, {-1, -1, -1}};
	bool well_formed = order_is_well_formed(body, size);
	size_t fds = size >= 8 && get32(body + 4) == 3 ? 3 : 0;
	bool complete = connection_take_fds(from, order.fds, fds);
	if (!well_formed) {
		send_error(from, id, EBADMSG, "a malformed START");
	} else if (!id_is_free(from, id)) {
		/* told */
	} else if (!complete || shutting_down) {
		refuse_start(from, id, complete ? ESHUTDOWN : EBADF);
	} else {
		struct command *command = add_command(from, id, &order);
		if (!supervise_order(command, &order)) {
			refuse_start(from, id, errno);
			command->supervisor = (struct supervisor){0, -1};
			remove_command(command);
		}
	}
	for (size_t i = 0; i < 3; i++)
		if (order.fds[i] >= 0)
			close(order.fds[i]);
}

static struct command *find_target(struct connection *from, uint32_t id, uint32_t target)
{
	struct command *command = find_by_id(from, target);
	if (!command)
		send_error(from, id, ESRCH, "no such command");
	return command;
}

static void signal_group(struct connection *from, uint32_t id, struct command *command,
			 int signal)
{
	uint64_t serial = command->serial;
	commands_read_reports(); /* if the leader has just ended, its number is not ours any more */
	command = find_by_serial(serial);
	if (!command || command->state == LEADER_EXITED)
		send_error(from, id, ESRCH, "the command has ended");
	else if (kill(-command->leader, signal))
		send_error(from, id, errno, strerror(errno));
	else
		send_done(from, id, 1, "");
}

static void signal_tree(struct connection *from, uint32_t id, const struct command *command,
			int signal)
{
	pid_t root = command->supervisor.pid;
	send_done(from, id, root ? tree_signal(root, signal, NULL) : 0, "");
}

void command_signal(struct connection *from, uint32_t id, const uint8_t *body, size_t size)
{
	(void)size;
	int signal = (int)get32(body + 4);
	uint32_t scope = get32(body + 8);
	struct command *command = find_target(from, id, get32(body));
	if (!command)
		return;
	if (scope > SCOPE_TREE || signal < 0 || signal > SIGRTMAX)
		send_error(from, id, EINVAL, "no such signal or scope");
	else if (command->state == STARTING)
		send_error(from, id, EAGAIN, "the command is still starting");
	else if (scope == SCOPE_GROUP)
		signal_group(from, id, command, signal);
	else
		signal_tree(from, id, command, signal);
}

/* Killing the supervisor makes its processes ours; commands_sweep() does the rest. */
static void kill_command(struct command *command)
{
	command->killed = true;
	if (command->supervisor.pid)
		kill(command->supervisor.pid, SIGKILL);
}

void command_kill(struct connection *from, uint32_t id, const uint8_t *body, size_t size)
{
	(void)size;
	struct command *command = find_target(from, id, get32(body));
	if (!command)
		return;
	kill_command(command);
	send_done(from, id, 0, "");
}

static uint32_t id_on(const struct connection *connection, const struct command *command)
{
	for (struct watcher *w = command->watchers; w; w = w->next)
		if (w->connection == connection)
			return w->id;
	return 0;
}

void command_list(struct connection *from, uint32_t id, const uint8_t *body, size_t size)
{
	(void)body;
	uint32_t count = 0;
	size = 4;
	for (struct command *command = commands; command; command = command->next) {
		size += 24 + command->argv_size;
		count++;
	}
	uint8_t *listing = need_memory(malloc(size)), *p = put32(listing, count);
	for (struct command *command = commands; command; command = command->next) {
		p = put32(p, id_on(from, command));
		p = put32(p, (uint32_t)command->leader);
		p = put32(p, command->state);
		p = put64(p, command->start_ms);
		p = put32(p, (uint32_t)command->argv_size);
		memcpy(p, command->argv, command->argv_size);
		p += command->argv_size;
	}
	send_frame(from, LISTING, id, listing, size);
	free(listing);
}

void command_watch(struct connection *from, uint32_t id, const uint8_t *body, size_t size)
{
	(void)size;
	struct command *command = find_by_leader((pid_t)get32(body));
	if (!id_is_free(from, id))
		return;
	if (!command || !command->leader) {
		send_error(from, id, ESRCH, "no command with this pid");
		return;
	}
	uint8_t watching[8], exited[32] = {0};
	put32(put32(watching, (uint32_t)command->leader), command->state);
	send_frame(from, WATCHING, id, watching, sizeof watching);
	if (command->state == LEADER_EXITED) {
		put32(put32(exited, (uint32_t)command->leader), command->status);
		send_frame(from, EXITED, id, exited, sizeof exited);
	}
	add_watcher(command, from, id);
}

/* ------------------------------------------------------- what supervisors report */

void commands_init(void)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC) || fcntl(ends[0], F_SETFL, O_NONBLOCK))
		need_memory(NULL);
	reports = ends[0];
	supervisor_init(ends[1]);
}

int commands_report_fd(void)
{
	return reports;
}

static void leader_started(struct command *command, uint32_t pid)
{
	command->leader = (pid_t)pid;
	command->state = RUNNING;
	if (!command->quiet) {
		uint8_t body[4];
		put32(body, pid);
		tell(command, STARTED, body, sizeof body);
	}
}

static void take_report(const struct report *report)
{
	struct command *command = find_by_serial(report->serial);
	if (!command)
		return;
	if (report->kind != REPORT_FAILED && command->state == STARTING)
		leader_started(command, report->pid);
	switch (report->kind) {
	case REPORT_FAILED:
		idle_due_ms = 0;
		tell_two(command, FAILED, report->status, report->stage);
		remove_command(command);
		break;
	case REPORT_EXITED:
		idle_due_ms = 0;
		tell_exited(command, report->status, report->user_us, report->system_us,
			    report->peak_kib);
		if (report->last)
			end_command(command);
		break;
	case REPORT_GONE:
		end_command(command);
		break;
	}
}

void commands_read_reports(void)
{
	struct report batch[64];
	ssize_t got;
	while ((got = read(reports, batch, sizeof batch)) > 0)
		for (size_t i = 0; i < (size_t)got / sizeof *batch; i++)
			take_report(&batch[i]);
}

/* ----------------------------------------------------------- dead supervisors */

static bool is_supervisor(pid_t pid)
{
	for (size_t i = 0; i < idle_count; i++)
		if (idle[i].pid == pid)
			return true;
	for (struct command *command = commands; command; command = command->next)
		if (command->supervisor.pid == pid)
			return true;
	return false;
}

static void supervisor_died(struct command *command, int status)
{
	command->supervisor.pid = 0;
	if (command->state == RUNNING)
		command->status = (uint32_t)status;
	strays = true;
}

static void leader_reaped(struct command *command, int status, const struct rusage *usage)
{
	tell_exited(command, (uint32_t)status,
		    (uint64_t)usage->ru_utime.tv_sec * 1000000 + (uint64_t)usage->ru_utime.tv_usec,
		    (uint64_t)usage->ru_stime.tv_sec * 1000000 + (uint64_t)usage->ru_stime.tv_usec,
		    (uint64_t)usage->ru_maxrss);
}

/* A supervisor with a command does not end by itself, and a leader is a child of ours only when
 * its supervisor is dead. */
static void child_ended(pid_t pid, int status, const struct rusage *usage)
{
	for (size_t i = 0; i < idle_count; i++)
		if (idle[i].pid == pid) {
			close(idle[i].orders);
			idle[i] = idle[--idle_count];
			return;
		}
	for (struct command *command = commands; command; command = command->next) {
		if (command->supervisor.pid == pid)
			supervisor_died(command, status);
		else if (command->leader == pid && command->state == RUNNING)
			leader_reaped(command, status, usage);
	}
}

void commands_reap(void)
{
	int status;
	struct rusage usage;
	pid_t pid;
	while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
		commands_read_reports(); /* what a dead supervisor said last comes first */
		child_ended(pid, status, &usage);
	}
}

/* Kills what dead supervisors have left. Returns whether to come back soon. */
bool commands_sweep(void)
{
	if (!strays)
		return false;
	stray_count = tree_signal(getpid(), SIGKILL, is_supervisor);
	if (stray_count)
		return true;
	strays = false;
	for (struct command *command = commands, *next; command; command = next) {
		next = command->next;
		if (!command->supervisor.pid)
			end_command(command);
	}
	return false;
}

void commands_kill_all(void)
{
	for (struct command *command = commands; command; command = command->next)
		kill_command(command);
	for (size_t i = 0; i < idle_count; i++)
		kill(idle[i].pid, SIGKILL);
	strays = true;
}

bool commands_all_gone(void)
{
	return !commands && !strays;
}

unsigned commands_survivors(void)
{
	return tree_signal(getpid(), SIGKILL, NULL);
}

/* When to get a supervisor ready for the next START: in how many milliseconds, or -1. Not
 * before a command has run for a moment, because a fork would delay it. */
int commands_prepare_after_ms(void)
{
	if (idle_count || shutting_down || idle_due_ms == UINT64_MAX)
		return -1;
	uint64_t now = now_ms();
	return now < idle_due_ms ? (int)(idle_due_ms - now) : 0;
}

void commands_prepare(void)
{
	if (commands_prepare_after_ms())
		return;
	if (supervisor_fork(&idle[0], NULL))
		idle_count = 1;
	else
		idle_due_ms = UINT64_MAX; /* the next START forks its own, or tells why it can't */
}
