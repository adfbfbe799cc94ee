PRAGMA application_id = 1213809228;
PRAGMA user_version = 2;
BEGIN TRANSACTION;
CREATE TABLE caps (
    level TEXT PRIMARY KEY CHECK (level IN ('request', 'conversation', 'day', 'month', 'total')),
    nanousd INTEGER NOT NULL CHECK (typeof(nanousd) = 'integer' AND nanousd >= 0),
    checksum INTEGER NOT NULL
);
INSERT INTO "caps" VALUES('total',20000000000,1993757503);
INSERT INTO "caps" VALUES('day',500000000,1169269705);
INSERT INTO "caps" VALUES('request',10000000,2338522010);
CREATE TABLE closed (
    endpoint TEXT PRIMARY KEY,
    at INTEGER NOT NULL,
    why TEXT NOT NULL,
    checksum INTEGER NOT NULL
);
INSERT INTO "closed" VALUES('https://dear.example.com',1791727300,'it charged 0.0009 USD for a request that may cost 0.00042 USD at most',4065309724);
CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    at INTEGER NOT NULL CHECK (typeof(at) = 'integer' AND at BETWEEN 0 AND 253402300799),
    endpoint TEXT NOT NULL,
    request TEXT NOT NULL,
    conversation TEXT NOT NULL,
    client TEXT NOT NULL,
    price TEXT NOT NULL,
    room INTEGER,
    granted INTEGER NOT NULL CHECK (typeof(granted) = 'integer' AND granted >= 0),
    reserved INTEGER NOT NULL CHECK (typeof(reserved) = 'integer' AND reserved >= 0),
    charged INTEGER NOT NULL DEFAULT 0 CHECK (typeof(charged) = 'integer' AND charged >= 0),
    requests INTEGER NOT NULL DEFAULT 1 CHECK (requests >= 0),
    owner TEXT NOT NULL,
    nonce INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'reserved'
        CHECK (state IN ('reserved', 'sent', 'settled', 'disputed', 'reconciled', 'returned')),
    CHECK (room IS NULL OR granted <= room),
    CHECK (state IN ('reserved', 'sent') OR reserved = 0)
);
INSERT INTO "entries" VALUES(1,1791727100,'http://gpu:8000','q1','talk','laptop','1/0.1/4, stated by --price',10000000,420000,0,88000,1,'elsewhere 0 - - 7 99',3667171098151660309,'settled');
INSERT INTO "entries" VALUES(2,1791727200,'http://gpu:8000','q2','talk','laptop','1/0.1/4, stated by --price',10000000,420000,420000,0,1,'elsewhere 0 - - 7 99',4562289504043464691,'sent');
INSERT INTO "entries" VALUES(3,1791727300,'https://dear.example.com','q3','talk','desk','1/0.1/4, stated by --price',10000000,420000,0,900000,1,'elsewhere 0 - - 7 99',2252811027781311291,'disputed');
INSERT INTO "entries" VALUES(4,1791727400,'http://gpu:8000','q4','talk','desk','1/0.1/4, stated by --price',10000000,420000,0,77000,1,'elsewhere 0 - - 7 99',4428502339834973427,'reconciled');
INSERT INTO "entries" VALUES(5,1791727500,'http://gpu:8000','q5','talk','desk','1/0.1/4, stated by --price',10000000,420000,420000,0,1,'elsewhere 0 - - 7 99',3123124326999098680,'reserved');
CREATE TABLE totals (
    level TEXT NOT NULL,
    window TEXT NOT NULL,
    spent INTEGER NOT NULL CHECK (typeof(spent) = 'integer' AND spent >= 0),
    reserved INTEGER NOT NULL CHECK (typeof(reserved) = 'integer' AND reserved >= 0),
    PRIMARY KEY (level, window)
) WITHOUT ROWID;
INSERT INTO "totals" VALUES('client','desk',977000,420000);
INSERT INTO "totals" VALUES('client','laptop',88000,420000);
INSERT INTO "totals" VALUES('conversation','talk',1065000,840000);
INSERT INTO "totals" VALUES('day','2026-10-11',1065000,840000);
INSERT INTO "totals" VALUES('month','2026-10',1065000,840000);
INSERT INTO "totals" VALUES('request','q1',88000,0);
INSERT INTO "totals" VALUES('request','q2',0,420000);
INSERT INTO "totals" VALUES('request','q3',900000,0);
INSERT INTO "totals" VALUES('request','q4',77000,0);
INSERT INTO "totals" VALUES('request','q5',0,420000);
INSERT INTO "totals" VALUES('total','',1065000,840000);
CREATE INDEX unsent ON entries (owner) WHERE state = 'reserved';
COMMIT;
