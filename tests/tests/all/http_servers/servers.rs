//! nginx, Apache and Squid in the receiver's namespace, with files and logs in a folder.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use wirelane_tests::numbers::LIMIT;
use wirelane_tests::{Child, Lab, Signal};

/// True if these programs are installed; otherwise a message says what is skipped.
pub fn is_there(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| {
        let found =
            Command::new("sh").args(["-c", &format!("PATH=$PATH:/usr/sbin command -v {program}")]).output();
        !found.unwrap().status.success()
    });
    if let Some(program) = missing {
        println!("left out: what {program} logs (it is not installed: scripts/setup)");
    }
    missing.is_none()
}

/// The running servers, which end on drop.
pub struct Servers {
    pub nginx: SocketAddr,
    pub apache: SocketAddr,
    pub squid: SocketAddr,
    children: Vec<Child>,
}

impl Servers {
    /// Starts the servers, and waits until they answer.
    pub fn start(lab: &Lab, folder: &Path) -> Servers {
        let address = IpAddr::from(lab.receiver().address);
        let at = |port: u16| SocketAddr::new(address, port);
        let (nginx, apache, squid) = (at(8081), at(8082), at(3128));
        // Their workers run as other users.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
        let site = folder.join("site");
        fs::create_dir(&site).unwrap();
        fs::write(site.join("small.txt"), "small\n".repeat(20)).unwrap();
        fs::write(site.join("large.bin"), vec![b'L'; 300_000]).unwrap();
        fs::write(site.join("page.html"), "<p>one and another</p>\n".repeat(4000)).unwrap();
        let path = |name: &str| folder.join(name).display().to_string();
        fs::write(folder.join("nginx.conf"), nginx_conf(folder, nginx)).unwrap();
        fs::write(folder.join("apache.conf"), apache_conf(folder, apache)).unwrap();
        fs::write(folder.join("squid.conf"), squid_conf(folder, squid)).unwrap();
        let spawn = |words: &[&str]| lab.spawn(&lab.receiver().namespace, words).unwrap();
        let children = vec![
            spawn(&["/usr/sbin/nginx", "-c", &path("nginx.conf"), "-p", &path("")]),
            spawn(&["/usr/sbin/apache2", "-D", "FOREGROUND", "-f", &path("apache.conf")]),
            spawn(&["/usr/sbin/squid", "-N", "-f", &path("squid.conf")]),
        ];
        // Over the loopback device of their namespace, which is not captured.
        let end = Instant::now() + LIMIT;
        for server in [nginx, apache, squid] {
            let up = || TcpStream::connect_timeout(&server, Duration::from_secs(1)).is_ok();
            while !lab.enter(&lab.receiver().namespace, up).unwrap() {
                assert!(Instant::now() < end, "{server} does not answer");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Servers { nginx, apache, squid, children }
    }

    /// Ends all servers.
    pub fn stop(&mut self) {
        for child in &self.children {
            let _ = child.signal(Signal::Terminate);
        }
        for child in self.children.drain(..) {
            let _ = child.finish(Duration::from_secs(10));
        }
    }
}

fn nginx_conf(folder: &Path, listen: SocketAddr) -> String {
    let folder = folder.display();
    format!(
        "daemon off;\nuser root;\nworker_processes 1;\npid {folder}/nginx.pid;\nerror_log {folder}/nginx-error.log;\n\
         events {{ }}\nhttp {{\n  types {{ text/html html; text/plain txt; }}\n  access_log {folder}/nginx-access.log combined;\n  \
         client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;\n  \
         uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;\n  gzip on;\n  server {{ listen {listen}; root \
         {folder}/site; }}\n}}\n"
    )
}

fn apache_conf(folder: &Path, listen: SocketAddr) -> String {
    let folder = folder.display();
    let modules = ["mpm_event", "authz_core", "mime", "dir"];
    let modules: String = modules
        .iter()
        .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"))
        .collect();
    format!(
        "ServerRoot {folder}\nServerName here\nListen {listen}\nPidFile {folder}/apache.pid\nUser www-data\nGroup \
         www-data\nDefaultRuntimeDir {folder}\nMutex pthread\nScoreBoardFile {folder}/apache.board\n{modules}\
         StartServers 1\nTypesConfig /dev/null\nAddType text/plain .txt\nErrorLog {folder}/apache-error.log\n\
         DocumentRoot {folder}/site\n<Directory {folder}/site>\nRequire all granted\n</Directory>\n\
         LogFormat \"%h %l %u %t \\\"%r\\\" %>s %b \\\"%{{Referer}}i\\\" \\\"%{{User-Agent}}i\\\"\" combined\n\
         CustomLog {folder}/apache.log combined\n"
    )
}

fn squid_conf(folder: &Path, listen: SocketAddr) -> String {
    let folder = folder.display();
    format!(
        "http_port {listen}\nhttp_access allow all\ncache deny all\naccess_log stdio:{folder}/squid-access.log\n\
         cache_log {folder}/squid-cache.log\npid_filename {folder}/squid.pid\ncoredump_dir {folder}\n\
         cache_mem 8 MB\npinger_enable off\nshutdown_lifetime 0 seconds\nvisible_hostname here\nlogfile_rotate 0\n\
         dns_nameservers 127.0.0.1\ndns_timeout 1 seconds\nbuffered_logs off\nnetdb_filename none\n"
    )
}
