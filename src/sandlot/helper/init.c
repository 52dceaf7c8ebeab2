/* The resident helper of a sandbox: owns its processes. PROTOCOL.md says what it does.
 *
 * One thread, one loop. Nothing in it waits for anybody: not for a client that does not read,
 * not for a command, not for a supervisor.
 */
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 256, MAX_PATHS = 64, KILL_PATIENCE_MS = 5000, LAST_WORDS_MS = 2000 };

bool shutting_down;

static struct {
	const char *dir, *root, *listen, *lock, *umask;
	const char *remove[MAX_PATHS], *cgroup[MAX_PATHS];
	size_t remove_count, cgroup_count;
} options;

static int dir_fd = AT_FDCWD;
static int listener = -1, signals = -1, lifetime = -1;
static struct connection *connections, *owner;
static size_t connection_count;
static bool keep;
static uint64_t kill_deadline;

/* ------------------------------------------------------------------ small things */

static _Noreturn void die(int code, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fputs("sandlot-init: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	exit(code);
}

void *need_memory(void *memory)
{
	if (!memory)
		die(1, "out of memory");
	return memory;
}

uint64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void close_fds(unsigned first, unsigned last)
{
	if (!syscall(SYS_close_range, first, last, 0))
		return;
	long most = sysconf(_SC_OPEN_MAX); /* a kernel before 5.9 */
	for (unsigned fd = first; fd <= last && fd < (unsigned long)most; fd++)
		close((int)fd);
}

/* ---------------------------------------------------------------- connections */

static void send_hello(struct connection *to)
{
	uint8_t body[12];
	uint8_t *p = put32(put32(body, PROTOCOL_VERSION), (uint32_t)getpid());
	put32(p, FEATURE_FDS | FEATURE_PTY | FEATURE_NATIVE);
	send_frame(to, HELLO, 0, body, sizeof body);
}

static struct connection *add_connection(int fd)
{
	struct connection *connection = connection_open(fd);
	connection->next = connections;
	connections = connection;
	connection_count++;
	send_hello(connection);
	return connection;
}

static bool is_same_user(int fd)
{
	struct ucred peer;
	socklen_t size = sizeof peer;
	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.uid == geteuid();
}

static void accept_connection(void)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0)
		return;
	if (is_same_user(fd))
		add_connection(fd);
	else
		close(fd);
}

static void begin_shutdown(void)
{
	if (shutting_down)
		return;
	shutting_down = true;
	kill_deadline = now_ms() + KILL_PATIENCE_MS;
	for (struct connection *c = connections; c; c = c->next)
		send_frame(c, ENDING, 0, NULL, 0);
	commands_kill_all();
}

static void remove_dead_connections(void)
{
	for (struct connection **link = &connections; *link;) {
		struct connection *connection = *link;
		if (!connection->dead) {
			link = &connection->next;
			continue;
		}
		*link = connection->next;
		connection_count--;
		commands_forget(connection);
		if (connection == owner) {
			owner = NULL;
			if (!keep)
				begin_shutdown();
		}
		connection_close(connection);
	}
}

/* ------------------------------------------------------------------- requests */

static void on_shutdown(struct connection *from, uint32_t id, const uint8_t *body, size_t size)
{
	(void)body, (void)size;
	if (from->wants_shutdown) {
		send_error(from, id, EALREADY, "asked already");
		return;
	}
	from->wants_shutdown = true;
	from->shutdown_id = id;
	begin_shutdown();
}

static void on_lifetime(struct connection *from, uint32_t id, const uint8_t *body, size_t size)
{
	(void)size;
	uint64_t ms = get64(body);
	struct itimerspec end = {
		.it_value = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000},
	};
	if (timerfd_settime(lifetime, 0, &end, NULL))
		send_error(from, id, errno, "an impossible lifetime");
	else
		send_done(from, id, 0, "");
}

static void on_keep(struct connection *from, uint32_t id, const uint8_t *body, size_t size)
{
	(void)size;
	keep = body[0] != 0;
	send_done(from, id, 0, "");
}

static void on_own(struct connection *from, uint32_t id, const uint8_t *body, size_t size)
{
	(void)body, (void)size;
	owner = from;
	send_done(from, id, 0, "");
}

static const struct {
	void (*handle)(struct connection *, uint32_t, const uint8_t *, size_t);
	bool fixed_size;
	size_t size;
} requests[] = {
	[START] = {command_start, false, 0},
	[SIGNAL] = {command_signal, true, 12},
	[KILL] = {command_kill, true, 4},
	[SHUTDOWN] = {on_shutdown, true, 0},
	[LIFETIME] = {on_lifetime, true, 8},
	[KEEP] = {on_keep, true, 1},
	[LIST] = {command_list, true, 0},
	[WATCH] = {command_watch, true, 4},
	[OWN] = {on_own, true, 0},
};

static void handle_frame(struct connection *from, uint8_t type, uint32_t id,
			 const uint8_t *body, size_t size)
{
	if (type >= sizeof requests / sizeof *requests || !requests[type].handle)
		send_error(from, id, ENOSYS, "unknown type of frame");
	else if (requests[type].fixed_size && size != requests[type].size)
		send_error(from, id, EBADMSG, "a body of wrong size");
	else
		requests[type].handle(from, id, body, size);
}

/* ---------------------------------------------------------------------- start */

static void parse_options(int argc, char **argv)
{
	static const struct option names[] = {
		{"dir", required_argument, NULL, 'd'},    {"root", required_argument, NULL, 'r'},
		{"listen", required_argument, NULL, 'l'}, {"lock", required_argument, NULL, 'k'},
		{"remove", required_argument, NULL, 'x'}, {"cgroup", required_argument, NULL, 'c'},
		{"umask", required_argument, NULL, 'u'},  {"version", no_argument, NULL, 'v'},
		{0},
	};
	int option;
	while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
		switch (option) {
		case 'd': options.dir = optarg; break;
		case 'r': options.root = optarg; break;
		case 'l': options.listen = optarg; break;
		case 'k': options.lock = optarg; break;
		case 'u': options.umask = optarg; break;
		case 'x':
			if (options.remove_count == MAX_PATHS)
				die(2, "too many --remove");
			options.remove[options.remove_count++] = optarg;
			break;
		case 'c':
			if (options.cgroup_count == MAX_PATHS)
				die(2, "too many --cgroup");
			options.cgroup[options.cgroup_count++] = optarg;
			break;
		case 'v': exit(printf("%d\n", PROTOCOL_VERSION) < 0);
		default: exit(2);
		}
	}
	if (optind < argc)
		die(2, "unexpected argument: %s", argv[optind]);
}

static void join_cgroup(const char *path)
{
	char file[4096];
	if (snprintf(file, sizeof file, "%s/cgroup.procs", path) >= (int)sizeof file)
		die(2, "too long: --cgroup %s", path);
	int fd = open(file, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, "0", 1) != 1)
		die(1, "cannot join cgroup %s: %s", path, strerror(errno));
	close(fd);
}

/* A cgroup can't be removed while it holds a process, so we go up first. Where that is not
 * allowed (a v2 cgroup that hands controllers on takes no processes) it stays, empty. */
static void leave_cgroup(const char *path)
{
	char file[4096];
	if (snprintf(file, sizeof file, "%s/../cgroup.procs", path) >= (int)sizeof file)
		return;
	int fd = open(file, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	/* What was killed last may take a moment to leave. */
	bool left = write(fd, "0", 1) == 1;
	for (int tries = 0; left && rmdir(path) && errno == EBUSY && tries < 100; tries++)
		poll(NULL, 0, 2);
	close(fd);
}

static void set_umask(const char *text)
{
	char *end;
	unsigned long mask = strtoul(text, &end, 8);
	if (!*text || *end || mask > 0777)
		die(2, "not an octal umask: %s", text);
	umask((mode_t)mask);
}

static void open_dir(void)
{
	dir_fd = open(options.dir ? options.dir : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (dir_fd < 0)
		die(1, "cannot open %s: %s", options.dir ? options.dir : ".", strerror(errno));
}

static void take_lock(const char *path)
{
	int fd = openat(dir_fd, path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB))
		die(1, "cannot lock %s: %s", path, strerror(errno));
}

/* Binds by a relative name, since a socket's address holds no long path. */
static void start_listening(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof address.sun_path)
		die(2, "too long: --listen %s", path);
	memcpy(address.sun_path, path, strlen(path) + 1);
	struct stat status;
	if (!fstatat(dir_fd, path, &status, AT_SYMLINK_NOFOLLOW) && S_ISSOCK(status.st_mode))
		unlinkat(dir_fd, path, 0); /* of one that has died */
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	mode_t mask = umask(0177);
	if (listener < 0 || fchdir(dir_fd) ||
	    bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64))
		die(1, "cannot listen on %s: %s", path, strerror(errno));
	umask(mask);
}

static void close_inherited(void)
{
	close_fds(OWNER_FD + 1, ~0u);
	/* All three must be open, so that no descriptor of ours takes their place. */
	int null = open("/dev/null", O_RDWR);
	if (null < 0 || dup2(null, STDIN_FILENO) < 0)
		die(1, "cannot open /dev/null: %s", strerror(errno));
	for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			dup2(null, fd);
	if (null > STDERR_FILENO)
		close(null);
}

static void open_owner(void)
{
	int type = 0;
	socklen_t size = sizeof type;
	errno = 0;
	if (!getsockopt(OWNER_FD, SOL_SOCKET, SO_TYPE, &type, &size) && type == SOCK_STREAM) {
		fcntl(OWNER_FD, F_SETFD, FD_CLOEXEC);
		owner = add_connection(OWNER_FD);
	} else if (errno != EBADF || !options.listen) {
		die(2, "descriptor %d is not a stream socket", OWNER_FD);
	}
}

/* Signals are read from a descriptor or, all the others, never delivered: they stay blocked.
 * Dispositions go back to their defaults, so that commands inherit nothing odd. */
static void take_signals(void)
{
	for (int signal = 1; signal <= SIGRTMAX; signal++)
		sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
	sigset_t all, read;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	sigemptyset(&read);
	sigaddset(&read, SIGCHLD);
	sigaddset(&read, SIGTERM);
	signals = signalfd(-1, &read, SFD_NONBLOCK | SFD_CLOEXEC);
	lifetime = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK | TFD_CLOEXEC);
	if (signals < 0 || lifetime < 0)
		die(1, "cannot wait for signals: %s", strerror(errno));
}

/* Owner last: its HELLO says that all is ready. */
static void set_up(void)
{
	bool has_owner_fd = fcntl(OWNER_FD, F_GETFD) >= 0;
	close_inherited();
	if (!has_owner_fd && dup2(STDIN_FILENO, OWNER_FD) < 0) /* keeps the number taken */
		die(1, "cannot set up: %s", strerror(errno));
	for (size_t i = 0; i < options.cgroup_count; i++)
		join_cgroup(options.cgroup[i]);
	if (options.umask)
		set_umask(options.umask);
	open_dir();
	int start_dir = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (options.lock)
		take_lock(options.lock);
	if (options.listen)
		start_listening(options.listen);
	if (fchdir(start_dir) || (options.root && chdir(options.root)))
		die(1, "cannot enter %s: %s", options.root ? options.root : ".", strerror(errno));
	close(start_dir);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	take_signals();
	commands_init();
	prctl(PR_SET_DUMPABLE, 0);
	if (!has_owner_fd)
		close(OWNER_FD);
	open_owner();
}

/* ----------------------------------------------------------------------- loop */

static void read_signals(void)
{
	struct signalfd_siginfo info;
	while (read(signals, &info, sizeof info) == sizeof info)
		if (info.ssi_signo == SIGTERM)
			begin_shutdown();
	commands_reap();
}

static void read_lifetime(void)
{
	uint64_t expirations;
	if (read(lifetime, &expirations, sizeof expirations) > 0)
		begin_shutdown();
}

/* Waits for something to happen, and handles it. Returns whether something has. */
static bool turn(int timeout_ms)
{
	enum { SIGNALS, REPORTS, LIFE, LISTENER, FIRST };
	struct pollfd polled[FIRST + MAX_CONNECTIONS] = {
		[SIGNALS] = {signals, POLLIN, 0},
		[REPORTS] = {commands_report_fd(), POLLIN, 0},
		[LIFE] = {lifetime, POLLIN, 0},
		[LISTENER] = {connection_count < MAX_CONNECTIONS ? listener : -1, POLLIN, 0},
	};
	nfds_t count = FIRST;
	for (struct connection *c = connections; c; c = c->next)
		polled[count++] = (struct pollfd){c->fd, connection_interest(c), 0};
	if (poll(polled, count, timeout_ms) <= 0)
		return false;
	if (polled[REPORTS].revents)
		commands_read_reports();
	if (polled[SIGNALS].revents)
		read_signals();
	if (polled[LIFE].revents)
		read_lifetime();
	count = FIRST;
	for (struct connection *c = connections; c; c = c->next) {
		short events = polled[count++].revents;
		if (events & (POLLIN | POLLHUP | POLLERR))
			connection_read(c);
	}
	if (polled[LISTENER].revents)
		accept_connection();
	return true;
}

/* Comes before each wait: sending what waits may make room for the answer to a frame that has
 * long arrived, and for which no event would come. */
static void serve_connections(void)
{
	for (struct connection *c = connections; c; c = c->next)
		connection_serve(c, handle_frame);
	remove_dead_connections();
}

static bool finished(void)
{
	return shutting_down && (commands_all_gone() || now_ms() >= kill_deadline);
}

static void run(void)
{
	for (int pause_ms = 1;;) {
		bool again = commands_sweep();
		serve_connections();
		if (finished())
			return;
		again |= shutting_down;
		/* What SIGKILL does not end at once must not cost a whole CPU to wait for. */
		pause_ms = !again ? 1 : pause_ms < 64 ? 2 * pause_ms : pause_ms;
		if (!turn(again ? pause_ms : commands_prepare_after_ms()))
			commands_prepare();
	}
}

/* ------------------------------------------------------------------------ end */

static void flush_last_words(void)
{
	uint64_t deadline = now_ms() + LAST_WORDS_MS;
	for (struct connection *c = connections; c; c = c->next) {
		connection_flush(c);
		while (!c->dead && connection_interest(c) & POLLOUT && now_ms() < deadline) {
			struct pollfd writable = {c->fd, POLLOUT, 0};
			poll(&writable, 1, (int)(deadline - now_ms()));
			connection_flush(c);
		}
	}
}

static void remove_path(const char *path, char *trouble, size_t size)
{
	int error = remove_tree(dir_fd, path);
	size_t used = strlen(trouble);
	if (error)
		snprintf(trouble + used, size - used, "%scannot remove %s: %s", used ? "; " : "",
			 path, strerror(error));
}

int main(int argc, char **argv)
{
	parse_options(argc, argv);
	set_up();
	run();
	char trouble[1000] = "";
	unsigned survivors = commands_all_gone() ? 0 : commands_survivors();
	if (survivors)
		snprintf(trouble, sizeof trouble, "%u processes survive SIGKILL", survivors);
	if (options.listen)
		remove_path(options.listen, trouble, sizeof trouble);
	for (size_t i = 0; i < options.remove_count; i++)
		remove_path(options.remove[i], trouble, sizeof trouble);
	for (size_t i = 0; i < options.cgroup_count; i++)
		leave_cgroup(options.cgroup[i]);
	if (*trouble)
		fprintf(stderr, "sandlot-init: %s\n", trouble);
	for (struct connection *c = connections; c; c = c->next)
		if (c->wants_shutdown)
			send_done(c, c->shutdown_id, survivors, trouble);
	flush_last_words();
	return 0;
}
