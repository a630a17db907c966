"""The small world the bundled model knows about."""

CAPITALS = {
    "Argentina": "Buenos Aires", "Australia": "Canberra", "Austria": "Vienna",
    "Belgium": "Brussels", "Brazil": "Brasilia", "Canada": "Ottawa", "Chile": "Santiago",
    "China": "Beijing", "Cuba": "Havana", "Denmark": "Copenhagen", "Egypt": "Cairo",
    "England": "London", "Finland": "Helsinki", "France": "Paris", "Germany": "Berlin",
    "Greece": "Athens", "Hungary": "Budapest", "Iceland": "Reykjavik", "India": "New Delhi",
    "Ireland": "Dublin", "Italy": "Rome", "Japan": "Tokyo", "Kenya": "Nairobi",
    "Mexico": "Mexico City", "Morocco": "Rabat", "Netherlands": "Amsterdam",
    "Norway": "Oslo", "Peru": "Lima", "Poland": "Warsaw", "Portugal": "Lisbon",
    "Romania": "Bucharest", "Russia": "Moscow", "Scotland": "Edinburgh", "Spain": "Madrid",
    "Sweden": "Stockholm", "Switzerland": "Bern", "Thailand": "Bangkok", "Turkey": "Ankara",
    "Ukraine": "Kyiv", "Vietnam": "Hanoi",
}

OTHER_COUNTRIES = [
    "Albania", "Algeria", "Angola", "Armenia", "Bolivia", "Bulgaria", "Cambodia", "Cameroon", "Colombia",
    "Croatia", "Cyprus", "Ecuador", "Estonia", "Ethiopia", "Fiji", "Georgia", "Ghana", "Haiti", "Honduras",
    "Indonesia", "Iran", "Iraq", "Israel", "Jamaica", "Jordan", "Kazakhstan", "Laos", "Latvia", "Lebanon",
    "Libya", "Lithuania", "Madagascar", "Malaysia", "Mali", "Malta", "Mongolia", "Nepal", "New Zealand",
    "Nigeria", "Pakistan", "Panama", "Paraguay", "Serbia", "Slovakia", "Slovenia", "Somalia", "South Korea",
    "Sudan", "Syria", "Tanzania", "Tunisia", "Uganda", "Uruguay", "Venezuela", "Wales", "Zambia", "the moon",
    "the world", "Europe", "Asia", "Africa", "California", "Texas",
]

COLOURS = {
    "grass": "green", "snow": "white", "the sky": "blue", "a lemon": "yellow",
    "a tomato": "red", "coal": "black", "an orange": "orange", "a banana": "yellow",
    "the sea": "blue", "milk": "white", "chocolate": "brown", "a strawberry": "red",
    "a carrot": "orange", "the sun": "yellow", "a raven": "black", "a plum": "purple",
    "a flamingo": "pink", "an elephant": "grey", "a leaf": "green", "blood": "red",
    "a cherry": "red", "the night": "black", "a frog": "green", "gold": "yellow",
    "a cucumber": "green", "a pumpkin": "orange", "sand": "yellow", "a cloud": "white",
}

# animal: (sound, home, number of legs, young animal, a clause about the animal)
ANIMALS = {
    "dog": ("barks", "a house with people", 4, "puppy", "it loves to run and to play with a ball"),
    "cat": ("meows", "a house with people", 4, "kitten", "it sleeps for most of the day and hunts at night"),
    "cow": ("moos", "a farm", 4, "calf", "it eats grass and gives milk"),
    "horse": ("neighs", "a stable", 4, "foal", "it can sleep while it stands"),
    "sheep": ("bleats", "a meadow", 4, "lamb", "it gives wool for warm clothes"),
    "pig": ("grunts", "a farm", 4, "piglet", "it is much cleverer than people think"),
    "duck": ("quacks", "a pond", 2, "duckling", "its feathers keep the water out"),
    "hen": ("clucks", "a farm", 2, "chick", "it lays an egg almost every day"),
    "owl": ("hoots", "the forest", 2, "owlet", "it can turn its head almost all the way round"),
    "wolf": ("howls", "the forest", 4, "pup", "it lives and hunts with its family"),
    "lion": ("roars", "the grassland", 4, "cub", "it rests for most of the day"),
    "bear": ("growls", "the forest", 4, "cub", "it sleeps through the winter"),
    "mouse": ("squeaks", "a small hole", 4, "pup", "it can pass through a very small gap"),
    "frog": ("croaks", "a pond", 4, "tadpole", "it drinks through its skin"),
    "bee": ("buzzes", "a hive", 6, "larva", "it makes honey and dances to show the way to flowers"),
    "snake": ("hisses", "a warm and dry place", 0, "hatchling", "it smells with its tongue"),
    "elephant": ("trumpets", "the grassland", 4, "calf", "it never seems to forget a friend"),
    "fox": ("yelps", "a den in the forest", 4, "kit", "it hears a mouse under deep snow"),
    "crow": ("caws", "tall trees", 2, "chick", "it can remember a face for years"),
    "monkey": ("chatters", "the jungle", 4, "infant", "it uses its hands almost as we do"),
    "penguin": ("brays", "the cold coast of the south", 2, "chick", "it cannot fly, but it swims very well"),
    "dolphin": ("clicks", "the sea", 0, "calf", "it sleeps with one half of its brain at a time"),
    "spider": ("makes no sound", "a web", 8, "spiderling", "its thread is stronger than it looks"),
    "whale": ("sings", "the sea", 0, "calf", "its song travels through the water for many miles"),
}

IRREGULAR_PLURALS = {"sheep": "sheep", "wolf": "wolves", "mouse": "mice", "fox": "foxes"}

OPPOSITES = [
    ("hot", "cold"), ("big", "small"), ("tall", "short"), ("fast", "slow"), ("old", "young"),
    ("happy", "sad"), ("light", "dark"), ("open", "closed"), ("full", "empty"), ("hard", "soft"),
    ("loud", "quiet"), ("rich", "poor"), ("wet", "dry"), ("early", "late"), ("day", "night"),
    ("up", "down"), ("left", "right"), ("in", "out"), ("clean", "dirty"), ("strong", "weak"),
    ("easy", "difficult"), ("near", "far"), ("high", "low"), ("thick", "thin"), ("wide", "narrow"),
    ("sweet", "bitter"), ("brave", "afraid"), ("first", "last"), ("begin", "end"), ("win", "lose"),
    ("give", "take"), ("push", "pull"), ("summer", "winter"), ("true", "false"), ("heavy", "light"),
    ("black", "white"), ("before", "after"), ("always", "never"), ("asleep", "awake"), ("deep", "shallow"),
]

# Animals from the smallest to the largest.
SIZES = ["ant", "bee", "mouse", "frog", "hen", "cat", "fox", "sheep", "lion", "horse", "elephant", "whale"]

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August",
          "September", "October", "November", "December"]

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
           "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen",
           "eighteen", "nineteen", "twenty"]

# Members are in alphabetical order: the model learns to list them in this order, so that it repeats none.
CATEGORIES = {
    "fruits": ["apple", "banana", "cherry", "grape", "lemon", "mango", "orange", "pear", "plum", "strawberry"],
    "vegetables": ["bean", "cabbage", "carrot", "cucumber", "leek", "onion", "pea", "potato", "spinach", "tomato"],
    "colours": ["black", "blue", "brown", "green", "grey", "orange", "pink", "purple", "red", "white", "yellow"],
    "animals": ["bear", "cat", "cow", "dog", "elephant", "fox", "horse", "lion", "monkey", "sheep", "wolf"],
    "birds": ["crow", "duck", "eagle", "hen", "owl", "parrot", "penguin", "robin", "swan"],
    "flowers": ["daisy", "lily", "orchid", "poppy", "rose", "sunflower", "tulip", "violet"],
    "trees": ["apple tree", "birch", "cedar", "maple", "oak", "palm", "pine", "willow"],
    "instruments": ["cello", "clarinet", "drum", "flute", "guitar", "harp", "piano", "trumpet", "violin"],
    "tools": ["axe", "drill", "hammer", "ladder", "pliers", "saw", "screwdriver", "wrench"],
    "sports": ["basketball", "cycling", "football", "hockey", "rowing", "running", "swimming", "tennis"],
    "drinks": ["coffee", "juice", "lemonade", "milk", "tea", "water"],
    "planets": ["Earth", "Jupiter", "Mars", "Mercury", "Neptune", "Saturn", "Uranus", "Venus"],
    "shapes": ["circle", "cube", "oval", "rectangle", "sphere", "square", "star", "triangle"],
    "countries": ["Brazil", "Canada", "Egypt", "France", "India", "Italy", "Japan", "Norway", "Spain"],
    "cities": ["Berlin", "Cairo", "Lisbon", "London", "Madrid", "Oslo", "Paris", "Rome", "Tokyo"],
    "clothes": ["coat", "dress", "glove", "hat", "jacket", "scarf", "shirt", "shoe", "sock"],
    "rooms": ["attic", "bathroom", "bedroom", "cellar", "hall", "kitchen", "library", "study"],
    "jobs in a theatre": ["actor", "carpenter", "costume maker", "director", "lighting designer",
                          "musician", "prompter", "stage manager"],
    "parts of a theatre": ["balcony", "box office", "curtain", "dressing room", "orchestra pit",
                           "prompt box", "stage", "wings"],
    "things in a kitchen": ["bowl", "cup", "fork", "knife", "oven", "pan", "plate", "spoon"],
}

SINGLE_FACTS = {
    "how many days are in a week": "There are seven days in a week.",
    "how many months are in a year": "There are twelve months in a year.",
    "how many hours are in a day": "There are twenty-four hours in a day.",
    "how many minutes are in an hour": "There are sixty minutes in an hour.",
    "how many seconds are in a minute": "There are sixty seconds in a minute.",
    "how many seasons are there": "There are four seasons: spring, summer, autumn and winter.",
    "how many days are in a year": "There are 365 days in most years, and 366 in a leap year.",
    "how many letters are in the alphabet": "There are twenty-six letters in the English alphabet.",
    "how many legs does a spider have": "A spider has eight legs.",
    "how many planets are in the solar system": "There are eight planets in the solar system.",
    "how many sides does a triangle have": "A triangle has three sides.",
    "how many sides does a square have": "A square has four equal sides.",
    "how many wheels does a bicycle have": "A bicycle has two wheels.",
    "how many strings does a violin have": "A violin has four strings.",
    "where does the sun rise": "The sun rises in the east and sets in the west.",
    "what do bees make": "Bees make honey.",
    "what is ice": "Ice is frozen water.",
    "what is steam": "Steam is water that became so hot that it turned into a gas.",
    "what do plants need": "Plants need light, water, air and a little good soil.",
    "what is the largest planet": "The largest planet in the solar system is Jupiter.",
    "what is the largest animal": "The largest animal in the world is the blue whale.",
    "what is the tallest animal": "The tallest animal in the world is the giraffe.",
    "what is the fastest land animal": "The fastest land animal is the cheetah.",
    "what is the largest ocean": "The largest ocean in the world is the Pacific.",
    "who wrote hamlet": "William Shakespeare wrote Hamlet, more than four hundred years ago.",
    "who wrote romeo and juliet": "William Shakespeare wrote Romeo and Juliet.",
    "why is the sky blue": "The air scatters blue light more than red light, so the sky looks blue by day.",
    "why do leaves fall": "In autumn many trees drop their leaves to save water through the winter.",
    "what is bread made of": "Bread is made of flour, water, salt and often a little yeast.",
    "what is the moon": "The moon is a ball of rock that travels around the Earth once a month.",
    "what is the sun": "The sun is a star. It gives the Earth its light and its warmth.",
    "what is rain": "Rain is water that falls from the clouds in small drops.",
    "what is a rainbow": "A rainbow is sunlight that drops of water have split into its colours.",
    "what is a river": "A river is a long stream of fresh water that flows towards the sea.",
    "what is music": "Music is sound that people arrange in time, so that it is pleasant to hear.",
    "what is a book": "A book is a set of pages with words or pictures, made to be read.",
}

NAMES = ["Ada", "Anna", "Ben", "Clara", "David", "Ella", "Emma", "Felix", "Finn", "Grace", "Hugo",
         "Ida", "Jack", "Julia", "Leo", "Lily", "Lucy", "Maria", "Max", "Mia", "Nina", "Noah",
         "Oscar", "Paul", "Rosa", "Sam", "Sofia", "Theo", "Tom", "Vera"]

# Names of users who introduce themselves.
GUESTS = NAMES + [
    "Adam", "Alex", "Alice", "Amir", "Andrea", "Arthur", "Bella", "Bob", "Carlos", "Carol", "Chloe", "Chris",
    "Daniel", "Diana", "Elena", "Eric", "Eva", "Fatima", "Frank", "George", "Hanna", "Harry", "Helen", "Henry",
    "Ivan", "James", "Jane", "Jim", "Joe", "John", "Kate", "Kim", "Laura", "Lea", "Linda", "Louis", "Luke",
    "Mark", "Martin", "Mary", "Michael", "Mohamed", "Nick", "Nora", "Olga", "Olivia", "Pedro", "Peter", "Priya",
    "Ravi", "Robert", "Sara", "Simon", "Stella", "Steve", "Susan", "Thomas", "Tim", "Victor", "Yuki", "Zoe",
]

JOKES = [
    "Why did the actor fall through the floor? It was just a stage he was going through.",
    "Why did the book go to the doctor? It had hurt its spine.",
    "What do you call a bear with no teeth? A gummy bear.",
    "Why can't a bicycle stand on its own? Because it is two tired.",
    "What did one wall say to the other? I will meet you at the corner.",
    "Why was the broom late? It swept in.",
    "What has four wheels and flies? A rubbish cart.",
    "Why did the tomato turn red? It saw the salad dressing.",
    "What do you call a sleeping bull? A bulldozer.",
    "Why do bees hum? Because they forgot the words.",
    "How does the sea say hello? It waves.",
    "Why did the clock get sent away? It was tocking too much.",
    "Why did the prompter never get lost? He always had the next line.",
    "Why was the token so proud? It had been picked out of the whole vocabulary.",
]

RIDDLES = [
    ("What has hands but cannot clap?", "a clock"),
    ("What has a neck but no head?", "a bottle"),
    ("What gets wet while it dries?", "a towel"),
    ("What has many keys but opens no door?", "a piano"),
    ("What goes up but never comes down?", "your age"),
    ("What has teeth but cannot bite?", "a comb"),
    ("What can you catch but not throw?", "a cold"),
    ("What is full of holes but still holds water?", "a sponge"),
    ("What has a spine but no bones?", "a book"),
    ("What rises and falls but never leaves the theatre?", "the curtain"),
]
